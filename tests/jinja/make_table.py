"""Writes expected.jsonl and expressions.jsonl: what the real Jinja, in the environment of transformers, makes of the
templates and conversations here. Needs transformers 5 and jinja2 3.1:

    python3 tests/jinja/make_table.py

The templates are our own, with the constructs of published ones.
"""

import json
import pathlib

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather \"now\", in <a> town & its 'surroundings'",
        "parameters": {"type": "object", "properties": {
            "town": {"type": "string", "description": "Über welche Stadt? 城市"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "array", "items": {"type": "integer"}, "nullable": True},
            "more": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": []},
            "at": {"oneOf": [{"type": "string"}, {"type": "number"}], "default": 1.5},
            "kind": {"type": ["string", "null"]}}, "required": ["town"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}}]
CALL = {"id": "abcdefghi", "type": "function",
        "function": {"name": "weather", "arguments": {"town": "Köln", "days": [1, 2], "exact": True, "x": None, "f": 0.5}}}
NOW = {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": {}}}
SYSTEM = {"role": "system", "content": " Be brief. "}
HELLO = {"role": "user", "content": "Hello, 世界!\n"}
HI = {"role": "assistant", "content": " Hi <there> \n"}
ASK = {"role": "user", "content": "And the weather?"}
THOUGHT = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nIt is fine."}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "{\"temperature\": 21.5}"}
FINE = {"role": "assistant", "content": "It is fine."}

CONVERSATIONS = {
    "one": dict(messages=[HELLO], add_generation_prompt=True),
    "system": dict(messages=[SYSTEM, HELLO], add_generation_prompt=True),
    "turns": dict(messages=[HELLO, HI, ASK], add_generation_prompt=True),
    "closed": dict(messages=[SYSTEM, HELLO, HI, ASK, FINE], add_generation_prompt=False),
    "thinking": dict(messages=[HELLO, THOUGHT, ASK, THOUGHT], add_generation_prompt=False),
    "reasoning": dict(messages=[ASK, {**FINE, "reasoning_content": "\nHm.\n"}], add_generation_prompt=False),
    "no_thinking": dict(messages=[HELLO], add_generation_prompt=True, enable_thinking=False),
    "tools": dict(messages=[HELLO], tools=TOOLS, add_generation_prompt=True),
    "tools_system": dict(messages=[SYSTEM, HELLO], tools=TOOLS, add_generation_prompt=True, tools_in_user_message=False),
    "called": dict(messages=[ASK, CALLS, RESULT], tools=TOOLS, add_generation_prompt=True),
    "answered": dict(messages=[ASK, CALLS, RESULT, FINE, HELLO], tools=TOOLS, add_generation_prompt=True),
    "two_calls": dict(messages=[ASK, {"role": "assistant", "content": None, "tool_calls": [CALL, NOW]}, RESULT,
                                {**RESULT, "tool_call_id": "123456789", "content": "noon"}], add_generation_prompt=True),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}]}],
                  add_generation_prompt=True),
    "wrong_turns": dict(messages=[HELLO, ASK, HI], add_generation_prompt=True),
    "documents": dict(messages=[ASK], documents=[{"doc_id": 7, "text": "A text."}, {"title": "x", "text": "Another."}],
                      controls={"citations": True, "length": "short"}, add_generation_prompt=True),
    "no_messages": dict(messages=[], add_generation_prompt=True),
}
ALWAYS = dict(bos_token="<s>", eos_token="</s>")


def outcome(template, variables):
    """{"text"} or {"error"}: at the start ("load"), by raise_exception ("raised: ..."), or while rendering."""
    variables = dict(variables)
    conversation = variables.pop("messages", [])
    variables.setdefault("tools", None)
    tools, documents = variables.pop("tools"), variables.pop("documents", None)
    mask = "{% generation %}" in template
    try:
        texts, spans = render_jinja_template(
            conversations=[conversation], tools=tools, documents=documents, chat_template=template,
            return_assistant_tokens_mask=mask, continue_final_message=False, **variables)
    except TemplateSyntaxError:
        return {"error": "load"}
    except TemplateError as error:
        raised = type(error) is TemplateError
        return {"error": f"raised: {error}" if raised else "render"}
    except Exception:
        return {"error": "render"}
    if " at 0x" in texts[0]:
        return {"error": "render"}  # what nobody means to write: a generator, a function
    made = {"text": texts[0]}
    if mask:
        made["generated"] = [texts[0][begin:end] for begin, end in spans[0]]
    return made


EXPRESSIONS = """
1 + 2 * 3 - 4 // 3 | 7 % -3 | -7 // 2 | 2 ** 10 | 1 / 2 | 3.0 * 2 | 10 / 5 | 1e3 | 0.1 + 0.2 | 1_000 | 1e16 | 123456789012345680.0 | 1e-5
-2 ** 2 | 2 ** -1 | 7.5 % 2 | 2 ** 3 ** 2 | 1 // 0 | 1 / 0 | true + 1 | "a" * 3 | [1, 2] * 2 | "a" + 1 | [1] + [2] | (1,) + (2, 3)
"a" ~ 1 ~ none ~ true ~ nothing ~ [1, "x", 'it\\'s', none] ~ {"k": 1.0} | (1, 2) | (1,) | () | {} | {"a": {"b": [1, (2,)]}}
not true | not nothing | 1 < 2 < 3 | 1 < 2 > 3 | "a" < "b" | [1, 2] < [1, 3] | 1 == 1.0 | "1" == 1 | true == 1 | none == false | 1 < "a" | none < 1
1 in [1, 2] | "a" in "cat" | "k" in {"k": 1} | 3 not in (1, 2) | 1 in "1" | "x" in nothing | 1 in 5 | [1] in [[1]] | not 1 in [1]
1 and 0 or 5 | 0 or "" or none | 1 if false | 1 if true else 2 | (1 if false else 2) + 1 | (1 if false) is undefined | 1 if 0 else 2 if 0 else 3
d.a | d["a"] | d.zz | d.zz.y | d.items | d.items() | d.keys() | d.values() | d.get("zz") | d.get("zz", 4) | d.get("a", 4) | l[0] | l[-1] | l[9] | l[9].x | l.0
l[1:] | l[:-1] | l[::-1] | l[::2] | l[5:1:-2] | l[-2:] | l[::0] | "héllo"[1] | "héllo"[::-1] | "héllo"[1:3] | "abc"[10:] | "abc"[-1] | l["0"] | l["length"] | l[none:2]
s.upper() | s.lower() | s.title() | s.capitalize() | s.strip() | s.lstrip() | s.rstrip() | s.strip("a b") | s.startswith(" a") | s.startswith(("x", " ")) | s.endswith("x")
s.split() | s.split(" ") | s.split("b", 1) | s.rsplit("b", 1) | "a\\nb\\r\\nc\\n".splitlines() | s.split("") | s.replace("b", "_") | s.replace("b", "_", 1) | "abc".replace("", "-")
s.find("b") | s.find("zz") | "é-x".find("x") | s.index("zz") | s.count("b") | "-".join(["a", "b"]) | "-".join([1]) | "a-b-c".partition("-") | "a-b-c".rpartition("-") | "a".partition("-")
"abc".removeprefix("ab") | "abc".removesuffix("bc") | "abc".isdigit() | "12".isdigit() | "ab".isalpha() | "é1".isalnum() | " ".isspace() | "AB".isupper() | "ab1".islower() | "".isdigit()
"{}-{}".format(1, 2) | "%s" % 3 | "%s and %s" | format(1, 2) | s.zfill(3) | s.encode() | s.__class__ | "".__class__.__mro__ | d.__class__ | l.append(3) | d.update({}) | d.pop("a")
s | upper | s | trim | s | length | l | length | d | length | none | length | nothing | length | s | title | "hello wORLD it's" | title | "HELLO wo" | capitalize | "ÀÉ" | lower
l | join | l | join(", ") | l | first | l | last | [] | first | [] | first | default("x") | l | reverse | list | "abc" | reverse | l | list | "ab" | list | d | list | l | string | 5 | list
nothing | default("d") | "" | default("d") | "" | default("d", true) | none | default("d") | none | d("d", boolean=true) | nothing | d
"3" | int | "x" | int | "x" | int(7) | 3.9 | int | "3.7" | int | none | int | "2.5" | float | "x" | float | true | int | -3 | abs | "a" | abs | 2.5 | round | 3.14159 | round(2) | 2.6 | round | 1234 | round(1) | 2.1 | round(method="ceil")
"<a href='x'>&\\"" | escape | "<" | safe | "<" | e ~ "<" | ("<" | safe) ~ "<" | ("<" | safe) + "<" | "a" | forceescape | "a b" | urlencode
rows | map(attribute="n") | list | rows | map(attribute="deep.x") | list | rows | map(attribute="zz", default="?") | list | ["a", "b"] | map("upper") | list | ["a"] | map("nosuch") | list | [1, 2] | map("string") | join
rows | selectattr("n") | list | rows | selectattr("n", "equalto", 1) | map(attribute="r") | list | rows | rejectattr("r", "eq", "x") | list | length | rows | selectattr("deep", "defined") | list | length | rows | selectattr("n", "gt", 0) | list | length | rows | selectattr("r", "in", ["y"]) | list
[1, 0, 2] | select | list | [1, 0, 2] | reject | list | [1, 2, 3] | select("odd") | list | [1, "a"] | select("string") | list | [1, 2] | reject("even") | list | [3, 1, 2] | sort | [3, 1, 2] | sort(reverse=true) | ["b", "A"] | sort | rows | sort(attribute="n") | map(attribute="n") | list
d | dictsort | {"b": 1, "A": 2} | dictsort | {"b": 1, "A": 2} | dictsort(true) | {"b": 1, "a": 2} | dictsort(by="value") | d | items | list | nothing | items | list | 5 | items | [3, 1] | min | [3, 1] | max | [1, 2] | sum | rows | sum(attribute="n") | [1, 1, 2] | unique | list | [] | max
d | tojson | {"b": "é<&'\\"\\n", "a": [1, 2.0, none, true]} | tojson | "é😀" | tojson(ensure_ascii=true) | d | tojson(indent=2) | [] | tojson(indent=2) | [[]] | tojson(indent=1) | d | tojson(separators=(",", ":")) | {"b": 1, "a": 2} | tojson(sort_keys=true) | nothing | tojson | {1: 2, none: 3, true: 4} | tojson | 1e22 | tojson | "\\x7f\\u2028" | tojson
"a\\nb\\n\\nc" | indent | "a\\nb" | indent(2, true) | "a\\nb\\n" | indent(2) | "a\\n\\nb" | indent(2, blank=true) | "aXbX" | replace("X", "-") | "aXbX" | replace("X", "-", 1) | "xxaxx" | trim("x") | 12 | replace(1, 3)
s is string | 1 is string | 1 is number | true is number | true is integer | 1.0 is float | none is none | nothing is none | nothing is defined | nothing is undefined | d is mapping | l is sequence | d is sequence | s is iterable | 1 is iterable | d is iterable
true is boolean | 1 is boolean | true is true | 1 is true | false is false | 3 is odd | 3 is even | 9 is divisibleby(3) | 9 is divisibleby 3 | 1 is eq 1 | 1 is equalto(2) | 1 is not none | 1 is in [1] | 1 is sameas 1 | none is sameas none | "a" is lower | "A" is upper | range is callable | 1 is nosuch | 1 | nosuch
range(3) | list | range(1, 10, 4) | list | range(5, 0, -2) | list | range(1000000) | dict(a=1, b=2) | namespace(a=1).a | namespace(a=1).zz | raise_exception("no!") | cycler(1) | lipsum() | joiner() | nothing() | (s ~ "x").upper() | [1, [2, [3]]][1][1][0]
"\\t|\\\\|\\x41|\\u00e9|\\101|\\q" | 'single "in" it' | "a" "b" | loop | self | true and True | None | False
-1 | abs | -(1 | abs) | - 3 + 5 | 2 - -1 | +4 | not 1 == 2 | 1 + 1 == 2 and 2 > 1 | "a" ~ 1 + 2 | 2 * 3 ~ "x" | 5 is odd and 4 is even | [1, 2, 3][-1:] | join("") ~ "!" | "x" if nothing else "y" | d.b.c.d is defined | d.zz is defined and d.zz.y
"İ" | lower | "ß" | upper | "ﬁ" | title | "ς Σ" | lower | "ÿ" | upper | "ǆ" | title | "é"|title | "a-b_c d'e" | title
"""

STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }},{% else %}none{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in nothing %}x{% else %}none{% endfor %}",
    "{% for x in 5 %}x{% endfor %}",
    "{% for x in none %}x{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for a, b in [[1, 2], (3, 4)] %}{{ a + b }}{% endfor %}{% for a, b in [[1]] %}{% endfor %}",
    "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}",
    "{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% break %}", "{% if true %}{% continue %}{% endif %}",
    "{% for x in l %}{% else %}{% endfor %}{{ x }}{{ loop }}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in l %}{% if loop.first %}{% set y = 5 %}{% endif %}{{ y }}{% endfor %}{{ y }}",
    "{% set ns = namespace(a=1, b=[]) %}{% for i in l %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{% set d.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set c = 1, 2 %}{{ c }}", "{% set a, b = [1] %}", "{% set a.b = 1 %}",
    "{% set x %}  a{{ 1 }} {% endset %}[{{ x }}]{% set y | upper | trim %} q {% endset %}[{{ y }}]",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m() }}|{{ m(b=0, a=9) }}|{{ m(1, 2, 3) | upper }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "{% macro m(a, a2=a) %}{{ a2 }}{% endmacro %}{{ m(4) }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m() %}{{ loop.index }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}",
    "{{ m() }}{% macro m() %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% if nothing %}a{% elif 0 %}b{% elif 'x' %}c{% else %}d{% endif %}", "{% if %}a{% endif %}", "{% if 1 %}a", "{% endif %}", "{% else %}",
    "a{# c #}b{#- c -#} d {# c\n#}\ne", "a {#- x #} b", "{# never", "{{ never", "{{ 'never }}", "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {{ x }} {%- endraw -%} ", "{% raw %}x",
    "  {% if true %}\n  a\n  {% endif %}\nb\n", "  {%- if true -%}\n  a\n  {%- endif -%}\nb\n\n", "x {% if true %}\ny{% endif %}\n\n", "  {{ 1 }}\n  {{ 2 }}\n", "  {%+ if true %}\n a {% endif +%}\nb",
    "a\r\nb\rc\n", "{{ 1 }}\n", "{{ 1 }}\n\n", "{{- 1 -}} \n x", "\n{%- set x = 1 %}\n\n{{ x }}", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}}}",
    "{% if 1 %}{% set a = 1 %}{% endif %}{{ a }}", "{{ a }}{% set a = 1 %}", "{% set true = 1 %}", "{% set messages = messages + [1] %}{{ messages }}", "{% set d = {'a': 9} %}{{ d.a }}",
    "{% nosuch %}", "{{ 1 1 }}", "{{ }}", "{{ 1 | }}", "{{ (1 }}", "{{ [1, }}", "{{ a b }}", "{% for %}{% endfor %}", "{% for x %}{% endfor %}", "{{ 1 is }}", "{% set %}", "{{ x. }}", "{{ x[] }}", "{{ m(a=1, 2) }}", "}}", "%}", "{", "{ {", "$x", "{{ $x }}", "{{ 01 }}", "{{ 00 }}",
    "{% for x in l %}{% set l = [7] %}{{ l }}{% endfor %}{{ l }}", "{{ raise_exception() }}", "{{ raise_exception(1) }}", "{% generation %}a{% endgeneration %}b{% for i in l %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}",
    "{% for x in 'abc' %}{{ x }}{% endfor %}", "{% for x in l[:2] %}{{ x }}{% endfor %}{% for x in l | reverse %}{{ x }}{% endfor %}{% for x in range(2) %}{{ x }}{% endfor %}",
    "{% set l2 = [] %}{% for i in l %}{% set l2 = l2 + [i] %}{% endfor %}{{ l2 }}", "{{ d.a if d.a is defined else 'no' }}{{ d['a'] if 'a' in d else 'no' }}",
    "{% for x in l %}{{ x }}{{ ', ' if not loop.last }}{% endfor %}", "{% set _ = d.update({'x': 1}) %}", "{% if l | length > 2 and l[0] == 1 %}y{% endif %}",
]

# Right in Jinja, and refused here: no published template needs them.
REFUSED = {
    "{{ d.items() }}", "{{ d.keys() }}", "{{ d.values() }}", '{{ "{}-{}".format(1, 2) }}', '{{ "%s" % 3 }}',
    "{{ s.zfill(3) }}", "{{ s.encode() }}", '{{ "a" | forceescape }}', '{{ "a b" | urlencode }}', "{{ range(3) }}",
    "{{ range(1, 10, 4) }}", "{{ range(5, 0, -2) }}", "{{ lipsum() }}", "{{ self }}", '{{ "İ" | lower }}',
    '{{ "ß" | upper }}', '{{ "ﬁ" | title }}', '{{ "ς Σ" | lower }}', "{{ x[] }}", '{{ "%s and %s" | format(1, 2) }}',
}

VARIABLES = dict(
    d={"b": {"c": "<&>"}, "a": 1}, l=[1, 2, 3], s=" a bc b ", x={"y": 1},
    rows=[{"n": 1, "r": "x", "deep": {"x": 5}}, {"n": 2, "r": "y"}, {"n": 0, "r": "x"}])


def expression_cases():
    for line in EXPRESSIONS.strip().split("\n"):
        # Cases stand between " | "; filters do too. A case is taken with each number of filters.
        parts = line.split(" | ")
        seen = set()
        for i in range(len(parts)):
            for count in (1, 2, 3, 4):
                case = " | ".join(parts[i:i + count])
                if i + count <= len(parts) and case not in seen and (count == 1 or plausible(parts[i:i + count])):
                    seen.add(case)
                    yield "{{ " + case + " }}"
    yield from STATEMENTS


def plausible(parts):
    """The first is a value, the others look like filters."""
    names = ("abs capitalize count d default dictsort e escape first float forceescape indent int items join last "
             "length list lower map max min nosuch reject rejectattr replace reverse round safe select selectattr sort "
             "string sum title tojson trim unique upper urlencode").split()
    bare = [part.split("(")[0].split(" ")[0].split("~")[0] for part in parts]
    return all(name in names for name in bare[1:]) and bare[0] not in names[3:]


def main():
    with open(HERE / "expected.jsonl", "w") as file:
        for path in sorted((HERE / "templates").glob("*.jinja")):
            for name, variables in CONVERSATIONS.items():
                made = outcome(path.read_text(), {**ALWAYS, **variables})
                file.write(json.dumps({"template": path.stem, "conversation": name, **made}, ensure_ascii=False) + "\n")
    with open(HERE / "conversations.json", "w") as file:
        json.dump({name: {**ALWAYS, **variables} for name, variables in CONVERSATIONS.items()}, file,
                  ensure_ascii=False, indent=1)
        file.write("\n")
    with open(HERE / "expressions.jsonl", "w") as file:
        file.write(json.dumps({"variables": VARIABLES}, ensure_ascii=False) + "\n")
        for template in dict.fromkeys(expression_cases()):
            made = {"error": "refused"} if template in REFUSED else outcome(template, VARIABLES)
            file.write(json.dumps({"template": template, **made}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
