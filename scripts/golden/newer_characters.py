#!/usr/bin/env python3
"""Writes src/text/newer_characters.inc: characters about which Hugging Face tokenizers and our libraries may differ.

Usage: newer_characters.py > src/text/newer_characters.inc   (with a Python whose unicodedata is of Unicode 14: 3.11)
The tables behind Hugging Face's normalisers are older than any distribution's utf8proc, those behind its regular expressions
newer than PCRE2 10.42's (Unicode 14); \\p{Han} is there what Han is written with, since 10.40, signs of other scripts too.
Asked character by character. Needs: tokenizers (0.23.3 made what is committed).
"""
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(0x80, 0x40000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ["L", "Lu", "Ll", "Lm", "Lo", "N", "Nd", "No", "M", "Mn", "Mc", "P", "S"]
# Of Unicode 15 and 16: what newer libraries compose or decompose.
COMPOSED = [(0x105C0, 0x105F3), (0x11380, 0x113E2), (0x16100, 0x1612F), (0x16D40, 0x16D6C), (0x11930, 0x11930),
            (0x1E030, 0x1E06D)]


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def in_class(parts):
    """As PCRE2 writes them between brackets, four to a line."""
    written = [r"\\x{%X}" % low if low == high else r"\\x{%X}-\\x{%X}" % (low, high) for low, high in parts]
    return "\n     ".join('"%s"' % "".join(written[i:i + 4]) for i in range(0, len(written), 4))


def main():
    assert unicodedata.unidata_version == "14.0.0", "run it with Python 3.11"
    newer = [c for c in CODES if unicodedata.category(chr(c)) == "Cn"]
    members = {}
    for name in CATEGORIES:
        split = pre_tokenizers.Split(Regex(r"\p{%s}" % name), behavior="isolated")
        members[name] = [c for c in newer if len(split.pre_tokenize_str(chr(c) * 2)) == 2]
    split = pre_tokenizers.Split(Regex(r"\p{Han}"), behavior="isolated")
    han = [c for c in CODES if len(split.pre_tokenize_str(chr(c) * 2)) == 2]
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    plain = set(members["M"])
    for c in CODES:
        text = chr(c)
        # A mark that moves before or behind others is known as one.
        moves = any(nfd.normalize_str(asked) != asked for asked in ("a\u0345" + text, "a" + text + "\u0334"))
        if unicodedata.combining(text) and unicodedata.combining(text) not in (1, 240) and not moves:
            plain.add(c)
        for form, theirs in (("NFD", nfd), ("NFKD", nfkd)):
            if unicodedata.normalize(form, text) != text and theirs.normalize_str(text) == text:
                plain.add(c)
    for low, high in COMPOSED:
        plain.update(range(low, high + 1))
    print("// Made by scripts/golden/newer_characters.py.")
    print("constexpr Range kUnknownToNormalizers[] = {")
    print(",\n".join("    {0x%X, 0x%X}" % (low, high) for low, high in ranges(plain)) + "};")
    print("constexpr Category kNewerMembers[] = {")
    print(",\n".join('    {"%s",\n     %s}' % (name, in_class(ranges(members[name]))) for name in CATEGORIES) + "};")
    print("constexpr std::string_view kHan =\n     %s;" % in_class(ranges(han)))


if __name__ == "__main__":
    main()
