#!/usr/bin/env python3
"""Compares `orthant data prepare` with the wheels tokenizers and sentencepiece, id by id.

    compare_wheels.py PROGRAM [MEGABYTES [KIND...]]   default: 0.2 MB of text for each kind of tokenizer, all kinds
    compare_wheels.py --fixture FILE                  writes small tokenizers, texts and the wheels' ids, for the suite

Trains a small tokenizer of each kind with the wheels, on texts of wheel_texts.py, and encodes other such texts in both.
Exits 1 where an id differs, and shows the first text that differs; 3 where a wheel is missing.
"""
import io
import json
import os
import struct
import subprocess
import sys
import tempfile

import wheel_texts

try:
    import sentencepiece
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as error:
    print(f"compare_wheels.py needs tokenizers and sentencepiece: {error}", file=sys.stderr)
    sys.exit(3)

SIZES = [1200, 1400, 400]  # of byte-level vocabularies, of others, of their alphabets

# Words as published tokenizers cut them.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
             r"\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_behind(*splits):
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(corpus, pre_tokenizer, normalizer=None, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", AddedToken("<|pad|>", lstrip=True, rstrip=True)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=SIZES[0], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special, show_progress=False))
    return tokenizer


def gpt2(corpus):
    return byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False))


def gpt2_prefix(corpus):
    return byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=True))


def neox(corpus):
    tokenizer = byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("foo", single_word=True, lstrip=True)])
    return tokenizer


def llama3(corpus):
    tokenizer = byte_level(corpus, bytes_behind(split(LLAMA3)))
    eos = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", eos)])])
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    # A token that no merge makes, as some of Llama 3's are.
    data["model"]["vocab"]["CamelCaseWord"] = len(data["model"]["vocab"])
    return Tokenizer.from_str(json.dumps(data))


def qwen2(corpus):
    return byte_level(corpus, bytes_behind(split(QWEN2)), normalizers.NFC())


def o200k(corpus):
    return byte_level(corpus, bytes_behind(split(O200K)))


def deepseek2(corpus):
    letters = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0370-\u0373\u0391-\u03ff\u0400-\u0481\u0531-\u0556\u1e00-\u1fbc"
    return byte_level(corpus, pre_tokenizers.Sequence([
        split(r"[\r\n]"), split(rf"\s?[{letters}]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"),
        split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def deepseek3(corpus):
    return byte_level(corpus, bytes_behind(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK3)))


def behaviors(corpus):
    return byte_level(corpus, bytes_behind(
        split(r"\n", "merged_with_previous"), split("[A-Z]", "merged_with_next"), split(r"\s", "contiguous"),
        split(r"\w+", "removed", True), pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Digits(False)))


def normal_forms(corpus):
    return byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Sequence(
        [normalizers.NFKD(), normalizers.NFD(), normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " "),
         normalizers.NFKC()]))


def llama2(corpus, fallback=True, metaspace=None, fuse=True):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback))
    if metaspace:
        tokenizer.pre_tokenizer = metaspace
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])
    # Trained on words, as the published one was, and used without them.
    trained_by = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=SIZES[1], special_tokens=special, limit_alphabet=SIZES[2], show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = json.loads(metaspace_json(trained_by)) if trained_by else None
    data["added_tokens"] = data["added_tokens"][:3]
    return Tokenizer.from_str(json.dumps(data))


def metaspace_json(pre_tokenizer):
    holder = Tokenizer(models.BPE())
    holder.pre_tokenizer = pre_tokenizer
    return json.dumps(json.loads(holder.to_str())["pre_tokenizer"])


def unknown(corpus):
    return llama2(corpus, fallback=False)


def unknown_apart(corpus):
    return llama2(corpus, fallback=False, fuse=False)


def metaspace_first(corpus):
    return llama2(corpus, metaspace=pre_tokenizers.Metaspace(prepend_scheme="first"))


def metaspace_whole(corpus):
    return llama2(corpus, metaspace=pre_tokenizers.Metaspace(prepend_scheme="always", split=False))


def suffixes(corpus):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<unk>"], limit_alphabet=300, end_of_word_suffix="</w>", show_progress=False))
    return tokenizer


def sentencepiece_model(kind, **options):
    def train(corpus):
        model = io.BytesIO()
        lines = [line for text in corpus for line in text.split("\n") if line and "\0" not in line]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type=kind, vocab_size=8000, byte_fallback=True,
            character_coverage=0.98, minloglevel=2, max_sentence_length=20000, hard_vocab_limit=False, **options)
        return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return train


KINDS = {kind.__name__: kind for kind in (
    gpt2, gpt2_prefix, neox, llama3, qwen2, o200k, deepseek2, deepseek3, behaviors, normal_forms, llama2, unknown, unknown_apart,
    metaspace_first, metaspace_whole, suffixes)}
KINDS["spm_bpe"] = sentencepiece_model("bpe")
KINDS["spm_unigram"] = sentencepiece_model("unigram", normalization_rule_name="identity", remove_extra_whitespaces=False)


def corpus(seed, size):
    return [*wheel_texts.files(seed, size // 2), *wheel_texts.generated(seed, size // 2)]


def save(tokenizer, folder):
    """Writes it, and returns the file's name."""
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        return os.path.join(folder, "tokenizer.json")
    with open(os.path.join(folder, "tokenizer.model"), "wb") as file:
        file.write(tokenizer.serialized_model_proto())
    return os.path.join(folder, "tokenizer.model")


def ids_of(tokenizer, texts):
    if isinstance(tokenizer, Tokenizer):
        return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return tokenizer.encode(texts)


def read_token_file(path):
    """The ids of each document."""
    with open(path, "rb") as file:
        data = file.read()
    width, _, tokens, documents = struct.unpack_from("<IQQQ", data, 12)
    places = struct.unpack_from(f"<{2 * documents}Q", data, 64)
    ids = struct.unpack_from(f"<{tokens}{'H' if width == 2 else 'I'}", data, 64 + 16 * documents)
    return [list(ids[places[2 * i]:places[2 * i + 1]]) for i in range(documents)]


def equally_likely(tokenizer, ours, theirs):
    """Unigram models have ties, and versions of the library break them differently: the score and the text must agree."""
    if isinstance(tokenizer, Tokenizer):
        return False
    score = lambda ids: sum(tokenizer.get_score(i) for i in ids)
    return tokenizer.decode(ours) == tokenizer.decode(theirs) and abs(score(ours) - score(theirs)) < 1e-6 * abs(score(theirs)) + 1e-4


def compare(program, kind, megabytes, folder):
    """Whether all ids are equal."""
    tokenizer = KINDS[kind](corpus(1, 600_000))
    name = save(tokenizer, folder)
    texts = [text for text in corpus(2, int(megabytes * 1e6)) if text]
    theirs = ids_of(tokenizer, texts)
    asked = [(text, ids) for text, ids in zip(texts, theirs) if ids]  # a text without a token is no document
    with open(os.path.join(folder, "texts.jsonl"), "w") as file:
        file.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, (text, _) in enumerate(asked))
    out = os.path.join(folder, "out.tok")
    subprocess.run([program, "data", "prepare", file.name, "-o", out, "--tokenizer", name], check=True, stdout=subprocess.DEVNULL)
    ours = read_token_file(out)
    wrong = [i for i, (_, ids) in enumerate(asked) if i >= len(ours) or ours[i] != ids and not equally_likely(tokenizer, ours[i], ids)]
    size = sum(len(text.encode()) for text, _ in asked)
    print(f"{kind:16} {size / 1e6:8.2f} MB {len(asked):7} texts {sum(map(len, theirs)):9} ids  {len(wrong)} texts differ")
    if len(ours) != len(asked) and not wrong:
        print(f"  {len(ours)} documents for {len(asked)} texts")
        return False
    if wrong:
        text, ids = asked[wrong[0]]
        mine = ours[wrong[0]] if wrong[0] < len(ours) else []
        at = next((i for i, pair in enumerate(zip(mine, ids)) if pair[0] != pair[1]), min(len(mine), len(ids)))
        show = lambda some: [tokenizer.id_to_token(i) if isinstance(tokenizer, Tokenizer) else tokenizer.id_to_piece(i) for i in some]
        print(f"  text {wrong[0]}: id {at}\n    here   {show(mine[max(0, at - 4):at + 6])}\n    wheel  {show(ids[max(0, at - 4):at + 6])}")
    return not wrong


def write_fixture(path):
    """Tokenizers, texts and ids, for a suite without the wheels."""
    SIZES[:] = [420, 480, 150]
    texts = [text for text in wheel_texts.generated(7, 3_000) if text]
    fixture = {"wheel": tokenizers.__version__, "texts": texts, "kinds": {}}
    for kind in ("gpt2", "neox", "llama3", "qwen2", "deepseek2", "deepseek3", "behaviors", "normal_forms", "llama2",
                 "metaspace_first", "unknown"):
        tokenizer = KINDS[kind](list(wheel_texts.generated(1, 60_000)))
        fixture["kinds"][kind] = {"tokenizer": json.loads(tokenizer.to_str()), "ids": ids_of(tokenizer, texts)}
    with open(path, "w") as file:
        json.dump(fixture, file, ensure_ascii=True, separators=(",", ":"))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--fixture":
        write_fixture(sys.argv[2])
        return 0
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    megabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 0.2
    equal = True
    for kind in sys.argv[3:] or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            equal = compare(sys.argv[1], kind, megabytes, folder) and equal
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
