"""Reads the machine code (SASS) of kernels out of a cubin: how many instructions each has, and how many its hot loop.

Knows no more of the code than counting takes: since Volta (sm_70) an instruction is 16 bytes, its lowest 12 bits say what it is, and
branches are relative. The hot loop of a kernel is its largest outermost loop, of those with matrix instructions where there are any;
loops inside it count once. Checked against nvdisasm for sm_75 to 120 (scripts/kernel_budget.py --nvdisasm). For scripts.
"""
import re
import struct
import subprocess

INSTRUCTION_BYTES = 16
BRANCHES = {0x947, 0x547}  # BRA, and by a uniform predicate
INDIRECT = {0x949, 0x94A, 0x34A}  # BRX and JMX: where to is not known
CALLS = {0x943, 0x944, 0x343, 0x344}
ENDS = {0x94D, 0x950}  # EXIT, RET
MATRIX = {0x23C, 0x237}  # HMMA, IMMA
ALWAYS = 7  # the predicate that is true


class Code:
    """One kernel: `opcodes` by place, `next` the places that may follow each."""

    def __init__(self, text, arch):
        count = len(text) // INSTRUCTION_BYTES
        words = struct.unpack(f"<{2 * count}Q", text[:count * INSTRUCTION_BYTES])
        self.opcodes = [word & 0xFFF for word in words[::2]]
        self.next = []
        for place, opcode in enumerate(self.opcodes):
            low, high = words[2 * place], words[2 * place + 1]
            falls_through = [place + 1] if place + 1 < count else []
            is_certain = (low >> 12) & 15 == ALWAYS
            if opcode in BRANCHES:
                # A branch may have a second predicate, a uniform one, or ask whether its warp has diverged.
                is_certain = is_certain and opcode == 0x947 and (high >> 23) & 15 == ALWAYS and (low >> 32) & 3 == 0
                target = place + 1 + branch_offset(low, high, arch) // INSTRUCTION_BYTES
                if not 0 <= target < count:
                    raise ValueError(f"a branch at {place * INSTRUCTION_BYTES:#x} leaves its kernel")
                self.next.append([target] + ([] if is_certain else falls_through))
            elif opcode in INDIRECT:
                raise ValueError(f"an indirect branch at {place * INSTRUCTION_BYTES:#x}")
            elif opcode in ENDS:
                self.next.append([] if is_certain else falls_through)
            else:
                self.next.append(falls_through)

    def hot_loop(self):
        """Places of the hot loop; all of the kernel where it has none."""
        loops = [loop for loop in strongly_connected(self.next) if self._turns(loop)]
        multiplying = [loop for loop in loops if self._has(loop, MATRIX)]
        loops = multiplying or ([] if self._has(range(len(self.opcodes)), MATRIX) else loops)
        return max(loops, key=len) if loops else list(self._reached())

    def count(self, places, opcodes):
        return sum(self.opcodes[place] in opcodes for place in places)

    def _has(self, places, opcodes):
        return any(self.opcodes[place] in opcodes for place in places)

    def _turns(self, loop):
        # A branch to itself ends every kernel's code: nobody comes there.
        return len(loop) > 1

    def _reached(self):
        reached, waiting = {0}, [0]
        while waiting:
            for place in self.next[waiting.pop()]:
                if place not in reached:
                    reached.add(place)
                    waiting.append(place)
        return reached


def branch_offset(low, high, arch):
    """Bytes from the instruction behind a branch to where it goes."""
    offset = (low >> 34) | ((high & 0x3FFFF) << 30)
    offset -= (offset >> 47) << 48
    if arch >= 90:  # since Hopper eight bits more, the lowest
        offset = (offset << 8) | ((low >> 16) & 0xFF)
    return offset * 4


def strongly_connected(following):
    """Tarjan's components of the places that the first reaches, without recursion."""
    order, lowest, is_open, stack, components = {}, {}, set(), [], []
    work = [(0, 0)]
    while work:
        place, at = work.pop()
        if at == 0:
            order[place] = lowest[place] = len(order)
            stack.append(place)
            is_open.add(place)
        elif following[place][at - 1] in is_open:
            lowest[place] = min(lowest[place], lowest[following[place][at - 1]])
        while at < len(following[place]):
            then = following[place][at]
            at += 1
            if then not in order:
                work += [(place, at), (then, 0)]
                break
            if then in is_open:
                lowest[place] = min(lowest[place], order[then])
        else:
            if lowest[place] == order[place]:
                component = []
                while not component or component[-1] != place:
                    component.append(stack.pop())
                    is_open.discard(component[-1])
                components.append(component)
    return components


def kernels_of(cubin, arch):
    """{mangled name: Code} of a cubin, the bytes of an ELF file."""
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        raise ValueError("not a 64-bit ELF file")
    table, = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = sections[names_at][4]
    found = {}
    for name_at, _, _, _, offset, length in sections:
        name = cubin[names + name_at:cubin.index(b"\0", names + name_at)].decode()
        if name.startswith(".text."):
            found[name[len(".text."):]] = Code(cubin[offset:offset + length], arch)
    return found


def differences(nvdisasm, path, arch):
    """Where this reader and NVIDIA's disassembler disagree about a cubin: lines of text."""
    listing = subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout
    with open(path, "rb") as file:
        codes = kernels_of(file.read(), arch)
    found = []
    for part in listing.split(".section\t.text.")[1:]:
        name = part[:part.index(",")]
        lines = re.findall(r"^(\.L_\w+):|^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?(\S+)(.*)", part, re.M)
        labels, places, waiting = {}, [], []
        for label, address, *instruction in lines:
            if label:
                waiting.append(label)
                continue
            labels.update((one, int(address, 16) // INSTRUCTION_BYTES) for one in waiting)
            waiting = []
            places.append(instruction)
        code = codes[name]
        if len(places) != len(code.opcodes):
            found.append(f"{name}: {len(code.opcodes)} instructions, {len(places)} by nvdisasm")
            continue
        for place, (guard, word, rest) in enumerate(places):
            kind = word.split(".")[0].rstrip(";")
            expected = [place + 1] if place + 1 < len(places) else []
            if kind == "BRA":
                condition = guard or re.match(r"\S* *!?U?P\d", rest) or ".U" in word or ".DIV" in word or ".CONV" in word
                expected = [labels[re.search(r"\.L_\w+", rest).group()]] + (expected if condition else [])
            elif kind in ("EXIT", "RET"):
                expected = expected if guard or re.match(r" *!?U?P\d", rest) else []
            if sorted(expected) != sorted(code.next[place]):
                found.append(f"{name} at {place * INSTRUCTION_BYTES:#x}, {word}{rest}: {code.next[place]}, not {expected}")
            for known, opcodes in (({"HMMA", "IMMA"}, MATRIX), ({"CALL"}, CALLS), ({"BRA"}, BRANCHES), ({"EXIT", "RET"}, ENDS)):
                if (kind in known) != (code.opcodes[place] in opcodes):
                    found.append(f"{name} at {place * INSTRUCTION_BYTES:#x}: {word} is {code.opcodes[place]:#x}")
    return found
