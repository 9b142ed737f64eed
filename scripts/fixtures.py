#!/usr/bin/env python3
"""Keeps the large fixtures of tests as small archives: tests/fixtures/packs/NAME.tar.xz.

    scripts/fixtures.py unpack               lays what packs hold into tests/fixtures, where another pack's lies or none
    scripts/fixtures.py list                 names each pack, its size, and the folders and files that it holds
    scripts/fixtures.py pack NAME [PATH...]  makes a pack anew of what it holds, or of these paths below tests/fixtures
    scripts/fixtures.py check                unpacks, then says what was changed and not packed

CMake unpacks before tests are built. What is unpacked lies where it would lie without packs, and git ignores it: to
change a fixture, change it there and pack it. A SOURCE.txt stays outside of packs. Folders that repeat each other's
bytes (a model and its GGUF file) share a pack, which then holds them once. An archive depends on its files' names and
bytes alone. Needs Python 3.9 and nothing else."""
import fcntl
import hashlib
import io
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
PACKS = FIXTURES / "packs"
STAMP = FIXTURES / ".unpacked.json"  # of each pack the digest that was unpacked, and its files' digests
# Numbers of four or two bytes compress best one way, texts another: the smallest is taken.
FILTERS = [dict(zip(("lc", "lp", "pb"), bits)) for bits in ((3, 0, 2), (0, 2, 2), (2, 2, 2), (0, 1, 1), (3, 0, 0))]


def digest(content):
    return hashlib.sha256(content).hexdigest()


def names():
    return sorted(path.name.removesuffix(".tar.xz") for path in PACKS.glob("*.tar.xz"))


def vocabulary(merges):
    """vocab.json as byte-level BPE has it where ids follow merges: bytes, then what each merge makes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    lines = merges.decode().split("\n")
    tokens += [line.replace(" ", "") for line in lines if line and not line.startswith("#version")]
    text = json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def contents(archive):
    """Of each file in a pack's bytes its path below tests/fixtures and what it holds."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive))) as tar:
        out = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    for path in out:
        if pathlib.PurePosixPath(path).is_absolute() or ".." in pathlib.PurePosixPath(path).parts:
            raise SystemExit(f"fixtures: a pack holds {path}, which is outside of tests/fixtures")
        if path.endswith("/vocab.json") and not out[path]:  # pack() left it to be made
            out[path] = vocabulary(out[path.removesuffix("vocab.json") + "merges.txt"])
    return out


def roots(paths):
    """The folders, or files beside such folders, that these files are of: models/NAME, gguf/NAME.gguf."""
    return sorted({"/".join(path.split("/")[:2]) for path in paths})


def write(path, content):
    """In one step: programs that read the file while it is written see the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content)
    os.replace(new, path)


def remove(path):
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == FIXTURES or not folder.is_dir() or any(folder.iterdir()):
            break
        folder.rmdir()


def unpack_one(name, done):
    """Returns what the stamp has to say of the pack; `done` is what it says now, if anything."""
    archive = (PACKS / f"{name}.tar.xz").read_bytes()
    is_same = done is not None and done["pack"] == digest(archive)
    if is_same and all((FIXTURES / path).is_file() for path in done["files"]):
        return done
    files = contents(archive)
    before = done["files"] if done else {}
    for path, content in files.items():
        target = FIXTURES / path
        there = target.read_bytes() if target.is_file() else None
        if there == content or there is not None and is_same:
            continue
        if there is not None and path in before and digest(there) != before[path]:
            raise SystemExit(f"fixtures: {target.relative_to(ROOT)} was changed here, and so was its pack: move the "
                             "file away, run scripts/fixtures.py unpack, then change and pack it again")
        write(target, content)
    return {"pack": digest(archive), "files": {path: digest(content) for path, content in files.items()}}


def unpack():
    """Lays into tests/fixtures what is not there or is another pack's; files changed since are left as they are."""
    with open(FIXTURES / ".unpacked.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # builds of several presets may start at once
        done = json.loads(STAMP.read_text()) if STAMP.is_file() else {}
        now = {name: unpack_one(name, done.get(name)) for name in names()}
        kept = {path for pack in now.values() for path in pack["files"]}
        before = {path: content for pack in done.values() for path, content in pack["files"].items()}
        for path, content in before.items():  # what no pack has any more
            target = FIXTURES / path
            if path not in kept and target.is_file() and digest(target.read_bytes()) == content:
                remove(target)
        if now != done:
            write(STAMP, json.dumps(now, indent=0).encode())


def files_below(paths):
    """Files of these folders and files, as paths below tests/fixtures."""
    found = [path for part in paths for path in
             ([FIXTURES / part] if (FIXTURES / part).is_file() else sorted((FIXTURES / part).rglob("*")))]
    files = [path for path in found if path.is_file() and path.name != "SOURCE.txt"]
    return sorted(path.relative_to(FIXTURES).as_posix() for path in files)


def archive_of(files):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in sorted(files.items()):
            merges = files.get(path.removesuffix("vocab.json") + "merges.txt") if path.endswith("/vocab.json") else None
            stored = b"" if merges is not None and content == vocabulary(merges) else content
            member = tarfile.TarInfo(path)  # owner 0, the time 0
            member.size, member.mode = len(stored), 0o644
            tar.addfile(member, io.BytesIO(stored))
    lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}
    packed = [lzma.compress(plain.getvalue(), check=lzma.CHECK_CRC32, filters=[lzma2 | bits]) for bits in FILTERS]
    return min(packed, key=len)


def pack(name, paths):
    target = PACKS / f"{name}.tar.xz"
    if not paths:
        if not target.is_file():
            raise SystemExit(f"fixtures: there is no pack {name}; name the folders and files that it shall hold")
        paths = roots(contents(target.read_bytes()))
    missing = [path for path in paths if not (FIXTURES / path).exists()]
    if missing:
        raise SystemExit(f"fixtures: tests/fixtures has no {', '.join(missing)}")
    if unlike := [path for path in files_below(paths) if len(path.split("/")) < 2]:
        raise SystemExit(f"fixtures: {', '.join(unlike)} is in no folder")
    for other in names():
        if other != name and set(files_below(paths)) & set(contents((PACKS / f"{other}.tar.xz").read_bytes())):
            raise SystemExit(f"fixtures: the pack {other} holds some of these already")
    files = {path: (FIXTURES / path).read_bytes() for path in files_below(paths)}
    if target.is_file() and contents(target.read_bytes()) == files:
        print(f"fixtures: {target.relative_to(ROOT)} holds just this already")
        return
    content = archive_of(files)
    write(target, content)
    done = json.loads(STAMP.read_text()) if STAMP.is_file() else {}
    done[name] = {"pack": digest(content), "files": {path: digest(one) for path, one in files.items()}}
    write(STAMP, json.dumps(done, indent=0).encode())
    print(f"fixtures: {target.relative_to(ROOT)}, {len(content)} bytes")


def check():
    """What was changed, added or removed below tests/fixtures and not packed; without git, in packs' folders alone."""
    wrong, packed = [], {}
    for name in names():
        files = contents((PACKS / f"{name}.tar.xz").read_bytes())
        packed.update(files)
        there = files_below(roots(files))
        changed = [path for path in files if path not in there or (FIXTURES / path).read_bytes() != files[path]]
        if wrongly := sorted(set(changed) | set(there) - files.keys()):
            wrong.append(f"{wrongly[0]}: not as the pack {name} has it; scripts/fixtures.py pack {name}, or remove the "
                         "file and unpack")
    for arguments, says in (([], "in a pack, and git has it too"),
                            (["--others", "--ignored", "--exclude-standard"], "git ignores it, and no pack has it")):
        listed = subprocess.run(["git", "-C", FIXTURES, "ls-files", *arguments], capture_output=True, text=True)
        for path in listed.stdout.splitlines():
            if not path.startswith(".unpacked") and (path in packed) != bool(arguments):
                wrong.append(f"{path}: {says}")
    return wrong


def main(arguments):
    if arguments[:1] == ["unpack"] and len(arguments) == 1:
        unpack()
    elif arguments[:1] == ["list"] and len(arguments) == 1:
        for name in names():
            archive = (PACKS / f"{name}.tar.xz").read_bytes()
            print(f"{name:24} {len(archive):8}  {' '.join(roots(contents(archive)))}")
    elif arguments[:1] == ["pack"] and len(arguments) > 1:
        pack(arguments[1], [path.rstrip("/").removeprefix("tests/fixtures/") for path in arguments[2:]])
    elif arguments == ["check"]:
        unpack()
        for line in (wrong := check()):
            print(f"fixtures: tests/fixtures/{line}")
        return 1 if wrong else 0
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
