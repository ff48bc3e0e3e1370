"""Renders our chat templates by transformers, for chat_templates.json: python render_templates.py < JINJA_BY_NAME.json

JINJA_BY_NAME.json is {"chatml": "{%- for ..."}: the texts of jinja_of, as RUN/text_rules.json holds them.
"""

import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template

TURNS = [
    [("user", "Hi"), ("assistant", "Hello.")],
    [("system", "You are kind."), ("user", " What is 7 times 6? "), ("assistant", "It's 42,\nI \\think."), ("user", "Sure?"), ("assistant", "Yes.")],
    [("user", "été ☃"), ("assistant", "oui, l'été")],
]

result = {}
for name, jinja in json.load(sys.stdin).items():
    examples = []
    for turns in TURNS:
        messages = [{"role": role, "content": text} for role, text in turns]
        rendered = render_jinja_template([messages], chat_template=jinja)
        text = rendered[0][0] if isinstance(rendered, tuple) else rendered[0]
        examples.append({"messages": messages, "text": text})
    result[name] = {"jinja": jinja, "examples": examples}
json.dump(result, sys.stdout, indent=1, ensure_ascii=False)
print()
