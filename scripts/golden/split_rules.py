#!/usr/bin/env python3
"""Makes tests/fixtures/split_rules/cuts.json: how each rule of src/text/split_rules.h cuts 4000 texts, as hashes.

    pip install tokenizers
    scripts/golden/split_rules.py [tokenizer.json=RULE ...]

The rules are written here as the models' tokenizer.json have them, in the words of Hugging Face's library, which does the
cutting: another regular expression engine (Oniguruma), other tables of characters and other steps (Digits, Punctuation,
ByteLevel) than src/text uses. Arguments hold a rule against a model's own file: steps and normaliser must cut alike.

The names are those that llama.cpp's src/llama-vocab.cpp reads (commit 00ad355e009e, read on 28 November 2026), and those of
LATER, which newer copies of it have. What merges and the begin-of-text token do is from there too. The texts are made of
the pieces in ATOMS by a generator that the test has as well (tests/app/split_rules_test.cc).
"""
import itertools
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "split_rules" / "cuts.json"
SOURCE = "ggml-org/llama.cpp src/llama-vocab.cpp at 00ad355e009e83abf98f96a6ded7193b95763681, read on 28 November 2026"
LATER = ["glm5", "k2-horizon", "mmbert"]
REFUSED = ["whitespace"]  # words without merges over bytes or pieces: of one embedding model
KINDS = {"llama": "read", "gpt2": "read", "gemma4": "read", "none": "no tokenizer", "no_vocab": "no tokenizer",
         "bert": "refused", "t5": "refused", "rwkv": "refused", "plamo2": "refused", "hybriddna": "refused",
         "whitespace": "refused"}

GROUPS, TEXTS_IN_GROUP, MOST_ATOMS = 20, 200, 9
ATOMS = (
    "a b I x the Hello WORLD camelCase HTTPServer iPhone don't WE'LL it's I'M you're they'Ve O'Neill 'tis d'accord "
    "\u00e9t\u00e9 e\u0301 na\u00efve Stra\u00dfe \u0130stanbul \u01c5 \u00aa \u02b0 \u0253 \u017f 's\u017f K \u212a "
    "\u041d\u0435\u0449\u043e \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438 \u03a9\u03bc\u03ad\u03b3\u03b1 \u1f7d \u1fbe \u1fd3 \u1fdb \u10d0\u10d1 \u10a0 \u13a0 \uab70 \u0531\u0580 \U00010400 \U0001d400 "
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0651 \u0939\u093f\u0928\u094d\u0926\u0940 \u0995\u09cd\u09b7 \u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0e44\u0e17\u0e22 \u0e01 \u0e40 \u0ea5\u0eb2\u0ea7 \u1780\u17b6\u1793\u17cb \u1019\u103c\u1014\u103a \uaa60 \ua9e0 \u0f56\u0f7c\u0f51 "
    "\u6211\u60f3\u5728apple\u5de5\u4f5c \u4e16\u754c \u9fa5 \u9fa6 \u3400 \uf900 \U00020000 \u2f00 \u3042\u3044 \u30ab\u30bf \uff76\uff85 \u3007 \u3005 \ud55c\uad6d\uc5b4 \u3131 \u1100\u1161 \u3105\u3106 \u0800 \ud7a3 "
    "1 12 123 1234 12345 123456 1234567 12345678 3.14 1,234,567.89 0x1F 9\u00bd \u00b2 x\u00b2 10\u00b3 \u2460 \u0663\u0664\u0665\u0666 \u09e7\u09e8\u09e9\u09ea \u0967 \u216b \uff11\uff12 \u4e00 1st 2nd 7abc a1b22c333 5_000 12\u0301 "
    ". , ! ? ; : ... !!! ?! -- --- ( ) [] {} <= >= == != && || ++ -> => :: // /* */ # ## $ $100 100% @user ^ ~ ` ``` \\ \\n | _ __init__ \" '' ''' ' \u2018 \u2019 \u201c \u201d \u2014 \u2026 \u00bf \u00a1 \u00ab \u20ac \u00a3 \u00b0 \u00b1 \u00d7 \u00a9 \u2122 \u2192 \u2200 "
    "\u3001 \u3002 \uff0c \uff01 \uff1f \uff1a \uff5e \uff08 \u300a \u3000 \ufe30 \u0964 \u06d4 \u060c \u061f \u066b \u0e2f "
    "\U0001f680 \U0001f636\u200d\U0001f32b\ufe0f \U0001f999\U0001f999 \U0001f1e9\U0001f1ea \u2705 \U0001f44d\U0001f3fd \u200c \u200d \u200b \ufeff \u00ad \ufffd \u0000 \u0007 "
    "print(x) foo_bar() return; if(a>b){ </div> <a href=\"x\"> http://a.b/c?d=1 C:\\dir user@example.com #include ;\n }\n /\n //\n "
    "<sentinel:12> IMGIMGABCZ <|im_end|> ?\r\n !\n\n \u3002\n \u00b7\r\n").split(" ")
ATOMS += [" ", " ", " ", "  ", "   ", "    ", "     ", " " * 9, " " * 17, " " * 40, "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\t", "\t\t", " \n",
          "\n ", " \n \n", "\n    ", "  \r\n\t", "\u00a0", "\u2003", "\u2028", "\u0085", "\v", " a", " the", " 1", " 123", " 4567", " (", " '",
          " \u4e16", " \ud55c", " .", " \U0001f680", " \u0301", " \u200d", " 's", " 'S", "\u3000\u4e16", "\t'll"]
ATOMS = [atom for atom in ATOMS if atom]


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def from_the_right(piece):
    """Runs of numbers by threes from the right, by hand."""
    out, run = [], ""
    for c in piece + "\0":
        if c.isnumeric() and not is_han(c):
            run += c
            continue
        if run:
            first = len(run) % 3
            out += [run[:first]] if first else []
            out += [run[i:i + 3] for i in range(first, len(run), 3)]
            run = ""
            out.append("")
        if not out or (len(out[-1]) and out[-1][-1].isnumeric() and not is_han(out[-1][-1])):
            out.append("")
        out[-1] += c
    out[-1] = out[-1][:-1]
    return [piece for piece in out if piece]


def is_han(c):
    """Han numbers are letters to Unicode's categories, and numeric to Python."""
    return "\u3400" <= c <= "\u9fff" or "\uf900" <= c <= "\ufaff" or c >= "\U00020000" or c == "\u3005"


S = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = S + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(suffix, number, tail="/"):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{suffix}"
            rf"|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{tail}]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = cased(S + "?", r"\p{N}{1,3}")
SIGNS = "!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~"
V3 = f"[{SIGNS}]" + "[A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
CJK, CODER_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The letters with case of Unicode 11, as JavaScript's generators write them.
CASED = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
         "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
         "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
         "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
         "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
         "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
         "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
         "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
         "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
         "\U000118a0-\U000118df\U0001e900-\U0001e943")
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
AFMOE_CJK = ("[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
             "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")
# Han has no letters with case, so o200k's classes without it are these.
HAN_APART = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+" + S +
             r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*" + S +
             r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

END = byte_level(False)
# Rule: its steps, the names that it has, and of each name what llama.cpp says: m, pieces that are tokens are not merged; b, a
# begin-of-text token is added where the file does not say; n, form C (the model's own normaliser).
RULES = {
    "gpt2": ([byte_level(True)],
             "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
             "modern-bert exaone4 jais trillion granite-docling mpt:n olmo:n"),
    "digits": ([digits(True), byte_level(True)],
               "smollm starcoder refact command-r:n codeshell exaone minerva-7b mellum2"),
    "llama3": ([split(LLAMA3), END],
               "llama-bpe:mb llama3:mb llama-v3:mb falcon3:mb falcon-h1:mb pixtral:mb midm-2.0:mb lfm2:mb jina-v5-nano:mb dbrx "
               "smaug-bpe glm4 glm5 chatglm-bpe"),
    "minicpm5": ([split(r"\p{N}{1,3}"), split(LLAMA3.replace("{1,3}", "+")), END], "minicpm5:m"),
    "jais2": ([split(LLAMA3[:-len(r"\s+(?!\S)|\s+")] + "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4)) +
                     r"\s{1,2}(?!\S)|\s{1}"), END], "jais-2"),
    "k2": ([split(LLAMA3.replace(r"\p{L}+", "(?:\\p{L}|\\p{M}|\u200c|\u200d)+")), END], "k2-horizon"),
    "qwen2": ([split(QWEN2), END],
              "qwen2:n deepseek-r1-qwen:n f2llmv2:n megrez:n kormo stablelm2 hunyuan solar-open grok-2"),
    "ufakzeka": ([split(QWEN2[len(S) + 1:]), END], "ufakzeka"),
    "laguna": ([{"type": "Split", "pattern": {"String": "\n"}, "behavior": "Contiguous", "invert": False}, split(QWEN2), END],
               "laguna"),
    "qwen35": ([split(QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")), END],
               "qwen35:n"),
    "o200k": ([split(O200K), END], "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m:m"),
    "tekken": ([split(cased("", r"\p{N}")), END], "tekken:mb"),
    "tiny_aya": ([split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K), END], "tiny_aya cohere2moe"),
    "kimi": ([split(HAN_APART), END], "kimi-k2"),
    "youtu": ([split("[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|"
                     "[\u3105-\u312f]+|" + CJK), split(cased(S + "?", r"\p{N}")), END], "youtu:m"),
    "deepseek-llm": ([split("[\r\n]"), split(rf"\s?[{CASED}]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
                      split(r"\s+$"), split(CODER_CJK), digits(True), END], "deepseek-llm"),
    "deepseek-coder": ([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CODER_CJK), digits(True), END],
                       "deepseek-coder"),
    "deepseek-v3": ([split(r"\p{N}{1,3}"), split(CJK), split(V3), END], "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    "spark": ([split(r"\p{N}{1,3}"), split(CJK), split(V3.replace("+[\r\n]*|\\s*[\r\n]+", "+|[\r\n]")), digits(True), END], "spark2_5"),
    "afmoe": ([from_the_right, split(AFMOE_CJK), split(V3), END], "afmoe"),
    "falcon": ([{"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True), digits(False), split("[0-9][0-9][0-9]")], "falcon"),
    # What llama.cpp falls back to, which is no model's.
    "default": ([split(r"[\p{P}\$\+<=>\^~\|]+"), split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                 digits(False), split("[0-9][0-9][0-9]"), END], "default"),
    "bloom": ([split(BLOOM), END], "bloom poro-chat gpt3-finnish"),
    "viking": ([split(BLOOM), digits(True), END], "viking"),
    "chameleon": ([split("<sentinel:[0-9]+>"), split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"), split("([\t\n]|    |  )"), digits(True),
                   {"type": "Punctuation", "behavior": "Isolated"}, byte_level(True)], "chameleon:b"),
    "superbpe": ([split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), END], "superbpe"),
    "bailing": ([split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"), END],
                "bailingmoe bailingmoe2 llada-moe"),
    "seed": ([split(S + r"|[^" "\r\n" r"\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}" "\r\n" r"]+|\s*[" "\r\n" r"]+|\s+(?!\S)|\s+"), END],
             "seed-coder"),
    "exaone-moe": ([split(S + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"),
                    END], "exaone-moe"),
    "pieces": ([lambda text: [text.replace(" ", "\u2581")],
                {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Contiguous", "invert": False}],
               "gemma4:b granite-embed-multi-311m:b mmbert:b sarvam-moe"),
}


def texts():
    state = 1
    for _ in range(GROUPS):
        group = []
        for _ in range(TEXTS_IN_GROUP):
            def pick(count):
                nonlocal state
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                return (state >> 33) % count
            group.append("".join(ATOMS[pick(len(ATOMS))] for _ in range(1 + pick(MOST_ATOMS))))
        yield group


def pre_tokenizer(step):
    """One step of the library's, by way of the JSON that tokenizer.json has."""
    shell = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": step,
             "post_processor": None, "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    return Tokenizer.from_str(json.dumps(shell)).pre_tokenizer


def cutter(steps):
    whole = [step if callable(step) else pre_tokenizer(step) for step in steps]

    def cut(text):
        pieces = [text]
        for step in whole:
            pieces = [new for piece in pieces
                      for new in (step(piece) if callable(step) else [part for part, _ in step.pre_tokenize_str(piece)])]
        return pieces
    return cut


def add(hash_value, data):
    for byte in data:
        hash_value = (hash_value ^ byte) * 0x100000001b3 % 2**64
    return hash_value


def hashes(steps, composes):
    cut, normalize = cutter(steps), normalizers.NFC().normalize_str if composes else str
    out = []
    for group in texts():
        value = 0xcbf29ce484222325
        for text in group:
            for piece in cut(normalize(text)):
                value = add(value, piece.encode() + b"\xff")
            value = add(value, b"\xfe")
        out.append(f"{value:016x}")
    return out


def check(argument):
    path, _, rule = argument.partition("=")
    model = json.loads(pathlib.Path(path).read_text())
    own = pre_tokenizer(model["pre_tokenizer"])
    cut = cutter(RULES[rule][0])
    different = [text for group in texts() for text in group if [piece for piece, _ in own.pre_tokenize_str(text)] != cut(text)]
    print(f"{path}: {len(different)} of {GROUPS * TEXTS_IN_GROUP} texts are cut in another way; normalizer {model['normalizer']}",
          *[repr(text) for text in different[:3]])
    return not different


def main():
    if len(sys.argv) > 1:
        sys.exit(0 if all([check(argument) for argument in sys.argv[1:]]) else 1)
    names, rules = {}, {}
    for rule, (steps, all_names) in RULES.items():
        for entry in all_names.split():
            name, _, flags = entry.partition(":")
            key = rule + ("/nfc" if "n" in flags else "")
            names[name] = {"rule": key, "ignores_merges": "m" in flags, "adds_begin": "b" in flags}
            if key not in rules:
                rules[key] = hashes(steps, "n" in flags)
                print(key, flush=True)
    for rule, other in itertools.combinations(rules, 2):
        if (rule, other) == ("qwen2", "bailing"):  # other words for the same
            continue
        assert rules[rule] != rules[other], f"no text tells {rule} and {other} apart"
    golden = {"source": SOURCE, "later": LATER, "refused": REFUSED, "kinds": KINDS, "names": dict(sorted(names.items())),
              "most_atoms": MOST_ATOMS, "texts_in_group": TEXTS_IN_GROUP, "atoms": ATOMS, "rules": rules}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(golden, ensure_ascii=True, indent=0) + "\n")
    print(f"{OUT}: {len(names)} names, {len(rules)} rules, {len(ATOMS)} pieces of text")


if __name__ == "__main__":
    main()
