"""check_exported.py FOLDER...: does transformers read an exported tokenizer as SentencePiece reads its tokenizer.model?

Each folder holds tokenizer.model, what was made of it, a config.json, and texts.json, a list. Ids and decoded texts must
be equal, with the tokenizer's defaults and without special tokens. Exit code 3: a package is missing.
"""
import json
import os
import sys

try:
    import sentencepiece
    import transformers
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)


def equally_likely(model, unigram, ours, theirs):
    """Unigram models have ties, and the two libraries add scores in different precision."""
    if not unigram:
        return False
    score = lambda ids: sum(model.get_score(i) for i in ids)
    return model.decode(ours) == model.decode(theirs) and abs(score(ours) - score(theirs)) < 1e-6 * abs(score(theirs)) + 1e-4


def spells_a_name(model, text):
    """Whether it has the name of a special token or byte, and a character of that is no piece: then a Unigram model of the
    tokenizers library takes it for the token (docs/guides/export.md)."""
    names = [model.id_to_piece(i) for i in range(model.vocab_size()) if model.is_control(i) or model.is_unknown(i) or model.is_byte(i)]
    return any(name in text and any(model.is_unknown(model.piece_to_id(c)) for c in name) for name in names)


def check(folder):
    read = lambda name: json.load(open(os.path.join(folder, name)))
    model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    unigram = read("tokenizer.json")["model"]["type"] == "Unigram"
    texts = read("texts.json") + ["the text <s>, </s> and <unk>"]
    texts = [text for text in texts if not (unigram and spells_a_name(model, text))]
    wrong, ties = [], 0
    for text in texts:
        ids = model.encode(text)
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids != found and equally_likely(model, unigram, found, ids):
            ties += 1
        elif ids != found or tokenizer(text)["input_ids"] != found or tokenizer.decode(ids) != model.decode(ids):
            wrong.append(text)
    print(f"{os.path.basename(folder):10} {type(tokenizer).__name__}: {len(texts)} texts, {ties} ties, {len(wrong)} differ")
    for text in wrong[:3]:
        print(f"  {text!r}\n    SentencePiece {model.id_to_piece(model.encode(text))[:20]} {model.decode(model.encode(text))!r}"
              f"\n    transformers  {tokenizer.tokenize(text)[:20]} {tokenizer.decode(model.encode(text))!r}")
    return not wrong


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sys.exit(0 if all([check(folder) for folder in sys.argv[1:]]) else 1)
