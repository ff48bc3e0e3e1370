"""What the clients that people use get from `orthant serve`: the openai package, and lm-eval's local-completions and
local-chat-completions.

clients.py openai|lm_eval URL MODEL FOLDER: exit 3 where the package is missing, 1 where something is not as it should be.
"""
import json
import math
import os
import pathlib
import subprocess
import sys


def check_openai(url, model):
    try:
        import openai
    except ImportError:
        return 3
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)
    assert [m.id for m in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    asked = dict(model=model, prompt="The l", max_tokens=8, temperature=0)
    whole = client.completions.create(**asked, logprobs=2, echo=True)
    choice = whole.choices[0]
    assert choice.text.startswith("The l") and choice.finish_reason == "length", choice
    assert whole.usage.prompt_tokens == 5 and whole.usage.completion_tokens == 8, whole.usage
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 13
    assert "".join(told.tokens) == choice.text
    for token, value, top in list(zip(told.tokens, told.token_logprobs, told.top_logprobs))[5:]:
        assert value == max(top.values()) == top[token], (token, value, top)
    text, usage = "", None
    for event in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        text += event.choices[0].text if event.choices else ""
        usage = event.usage or usage
    assert "The l" + text == choice.text and usage == whole.usage, (text, usage)
    several = client.completions.create(model=model, prompt=["The l", "a"], n=2, max_tokens=4, seed=3)
    assert [c.index for c in several.choices] == [0, 1, 2, 3]
    for wrong, error in ((dict(best_of=3), openai.BadRequestError), (dict(model="other"), openai.NotFoundError)):
        try:
            client.completions.create(**{**asked, **wrong})
        except error as refused:
            assert refused.body["message"], refused
        else:
            raise AssertionError(f"{wrong} was taken")
    check_openai_chat(client, model, openai)
    return 0


def check_openai_chat(client, model, openai):
    asked = dict(model=model, messages=[{"role": "user", "content": "The l"}], max_tokens=8, temperature=0)
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason == "length", choice
    assert whole.usage.completion_tokens == 8 and len(choice.logprobs.content) == 8, whole
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content), choice
    text, usage, roles = "", None, []
    for event in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for part in event.choices:
            text += part.delta.content or ""
            roles += [part.delta.role] if part.delta.role else []
        usage = event.usage or usage
    assert text == choice.message.content and usage == whole.usage and roles == ["assistant"], (text, usage, roles)
    # An answer is sent back as the package gave it.
    goes_on = [*asked["messages"], choice.message, {"role": "user", "content": [{"type": "text", "text": "and"}]}]
    again = client.chat.completions.create(model=model, messages=goes_on, max_completion_tokens=3)
    assert again.usage.completion_tokens == 3, again
    for wrong, error in ((dict(tool_choice="required"), openai.BadRequestError), (dict(model="other"), openai.NotFoundError)):
        try:
            client.chat.completions.create(**{**asked, **wrong})
        except error as refused:
            assert refused.body["message"], refused
        else:
            raise AssertionError(f"{wrong} was taken")


# No context ends with a space: lm-eval counts it to the choice.
QUESTIONS = [("The lazy", [" dog", " xyz"], 0), ("The lazy dog sleeps 3", [" qqqqq", " hours"], 1), ("a caf", ["\u00e9 is", "zz zz"], 0)]


def check_lm_eval(url, model, folder):
    """A task of our own: its loglikelihoods, asked for by lm-eval, are those that we ask for ourselves."""
    try:
        import lm_eval  # noqa: F401
        import requests
    except ImportError:
        return 3
    folder = pathlib.Path(folder)
    with open(folder / "questions.jsonl", "w") as lines:
        for context, choices, answer in QUESTIONS:
            lines.write(json.dumps({"context": context, "choices": choices, "answer": answer}) + "\n")
    (folder / "ours.yaml").write_text(f"""
task: ours
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""")
    (folder / "goes_on.yaml").write_text(f"""
task: goes_on
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: [" "], max_gen_toks: 12}}
metric_list: [{{metric: exact_match}}]
""")
    environment = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(folder / "hf"))
    arguments = f"model={model},base_url={url}/completions,num_concurrent=2,tokenizer_backend=remote,max_length=512"
    BYTES = folder / "byte_tokenizer"
    write_byte_tokenizer(BYTES)
    arguments = (f"model={model},base_url={url}/completions,num_concurrent=2,max_length=512,"
                 f"tokenizer_backend=huggingface,tokenizer={BYTES}")
    ran = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments,
                          "--tasks", "ours,goes_on", "--include_path", str(folder), "--output_path", str(folder / "out"),
                          "--log_samples"], env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        print(ran.stdout[-3000:], ran.stderr[-6000:], file=sys.stderr)
        return 1
    (samples,) = (folder / "out").rglob("samples_ours_*.jsonl")
    told = {}
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        told[sample["doc"]["context"]] = [float(answer[0][0]) for answer in sample["resps"]]
    for context, choices, _ in QUESTIONS:
        for choice, found in zip(choices, told[context]):
            reply = requests.post(url + "/completions", timeout=60, json={
                "prompt": context + choice, "echo": True, "logprobs": 0, "max_tokens": 0}).json()
            ours = sum(reply["choices"][0]["logprobs"]["token_logprobs"][len(context.encode()):])
            assert math.isclose(ours, found, abs_tol=1e-4), (context, choice, ours, found)
    ran = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--model_args",
                          f"model={model},base_url={url}/chat/completions,num_concurrent=2", "--tasks", "goes_on",
                          "--include_path", str(folder), "--apply_chat_template", "--output_path", str(folder / "chats"),
                          "--log_samples"], env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        print(ran.stdout[-3000:], ran.stderr[-6000:], file=sys.stderr)
        return 1
    (samples,) = (folder / "chats").rglob("samples_goes_on_*.jsonl")
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        reply = requests.post(url + "/chat/completions", timeout=60, json={
            "messages": [{"role": "user", "content": sample["doc"]["context"]}], "max_tokens": 12, "temperature": 0,
            "stop": [" "]}).json()
        found = sample["resps"][0][0]
        assert reply["choices"][0]["message"]["content"] == found, (sample["doc"], reply, found)
    return 0


def write_byte_tokenizer(folder):
    """A tokenizer of transformers whose ids are bytes, as a run on bytes has them."""
    folder.mkdir()
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in names:
            names[byte] = chr(256 + len(names) - len(kept))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {names[byte]: byte for byte in range(256)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


if __name__ == "__main__":
    kind, address, name, place = sys.argv[1:]
    sys.exit(check_openai(address, name) if kind == "openai" else check_lm_eval(address, name, place))
