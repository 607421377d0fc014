/*
 * test_jinja.c - the language of chat templates, piece by piece: each row is a template, what
 * jinja2 makes of it, and nothing else. Then white space around tags, failures, limits, marks of
 * users' text, and memory that runs out.
 */
#include <string.h>

#include "base/mem.h"
#include "testing.h"
#include "text/template/jinja.h"
#include "text/value/jinja_json.h"

struct input {
    const char *json; /* variables; NULL: none */
};

static void fill(void *user, struct jinja_heap *h, struct jinja_value variables)
{
    const struct input *in = user;
    if (in->json == NULL)
        return;
    struct jinja_value v = jinja_json_read(h, in->json, strlen(in->json));
    for (size_t i = 0; !jinja_failed(h) && i < v.u.dict->n; i++)
        jinja_dict_set(h, variables.u.dict, v.u.dict->pair[i].key, v.u.dict->pair[i].value);
}

static pith_status run(const char *source, const char *json, const struct jinja_limits *limits,
                       struct jinja_text *out, pith_error *why)
{
    static const int64_t now = 1741529106; /* Sunday, 2025-03-09 14:05:06 */
    struct jinja_template *t;
    struct input in = {json};
    pith_status status = jinja_template_parse(source, strlen(source), &t, why);
    if (status != PITH_OK)
        return status;
    const struct jinja_given given = {.now = &now, .limits = limits};
    status = jinja_render(t, fill, &in, &given, out, why);
    jinja_template_free(t);
    return status;
}

static void expect(const char *source, const char *json, const char *want)
{
    struct jinja_text out;
    err = (pith_error){0};
    if (run(source, json, NULL, &out, &err) != PITH_OK)
        fail_msg("%s\nfails: %s", source, err.message);
    if (strcmp(out.data, want) != 0)
        fail_msg("%s\nis     \"%s\"\nshould \"%s\"", source, out.data, want);
    jinja_text_free(&out);
}

struct row {
    const char *source, *want;
};

static void expect_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect(rows[i].source, NULL, rows[i].want);
}

#define EXPECT_ROWS(...)                                                                           \
    do {                                                                                           \
        static const struct row rows[] = {__VA_ARGS__};                                            \
        expect_rows(rows, PI_LEN(rows));                                                           \
    } while (0)

TEST(computes_as_python_does)
{
    EXPECT_ROWS(
        {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }}", "3 -4 -2 2"},
        {"{{ 7 / 2 }} {{ 6 / 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", "3.5 3.0 3.0 0.5"},
        {"{{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}", "1024 0.5 4"},
        {"{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }}", "3 9"},
        {"{{ true + 1 }} {{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }}",
         "2 1.0 1e+16 1e-05 0.30000000000000004"},
        {"{{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e3 }}", "1000 31 5 15 1500.0"},
        {"{{ 3 == 3.0 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ true == 1 }}", "True True False True"},
        {"{{ -3|abs }} {{ 2.5|round }} {{ 3.5|round }} {{ 42.55|round(1) }}", "3 2.0 4.0 42.5"},
        {"{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ 'ff'|int(0, 16) }}",
         "42 4 0 9 255"},
        {"{{ 1.25|float }} {{ '1e3'|float }} {{ 'x'|float }}", "1.25 1000.0 0.0"},
        {"{{ 42.55|round(1, 'floor') }} {{ 1.1|round(0, 'ceil') }}", "42.5 2.0"});
}

TEST(handles_strings_as_python_does)
{
    EXPECT_ROWS(
        {"{{ 'a\\n\\t\\\\\\'\\x41\\u00e9\\101\\q' }}", "a\n\t\\'A\xc3\xa9\x41\\q"},
        {"{{ 'a' 'b' ~ 1 ~ none ~ true }}", "ab1NoneTrue"},
        {"{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abc'[5] }}|{{ 'h\xc3\xa9!'[1] }}", "bc|\xc3\xa9"},
        {"{{ 'abcdef'[1:3] }} {{ 'abcdef'[-3:-1] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[::2] }}",
         "bc de fedcba ace"},
        {"{{ 'abc'[10:] }}|{{ 'abc'[:-10] }}|{{ 'abc'[-10:2] }}|{{ 'abc'[2:0:-1] }}", "||ab|cb"},
        {"{{ 'h\xc3\xa9llo'|length }} {{ 'h\xc3\xa9llo'|upper }} {{ '\xc3\x84'|lower }}",
         "5 H\xc3\x89LLO \xc3\xa4"},
        {"{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ ' x'.rstrip() }}|{{ 'ab'.lstrip('a') }}",
         "x|a| x|b"},
        {"{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }}",
         "['a', 'b', '', 'c'] ['a', 'b'] ['a', 'b,c']"},
        {"{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\\nb\\r\\nc'.splitlines() }}",
         "['a,b', 'c'] ['a', 'b', 'c']"},
        {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }}", "True True"},
        {"{{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'|replace('', '.') }}", "a-bX .a.b."},
        {"{{ 'x' * 3 }} {{ 'b' in 'abc' }} {{ 'z' not in 'abc' }}", "xxx True True"},
        {"{{ 'hello world'|title }} {{ 'hELLO'|capitalize }} {{ \"it's\".title() }}",
         "Hello World Hello It'S"},
        {"{{ '%s is %d, %05.1f%%' % ('x', 3, 2.25) }} {{ '%-4s|' % 'a' }}", "x is 3, 002.2% a   |"},
        {"{{ '{} {1} {a!r} {:>4}'.format(1, 2, a='q') if false else '{} {:>4}'.format(1, 'b') }}",
         "1    b"},
        {"{{ '{0}-{x[k]}-{0:03d}'.format(7, x={'k': 'v'}) }}", "7-v-007"},
        {"{{ 'a-b'.partition('-') }} {{ 'abc'.find('c') }} {{ 'abab'.count('ab') }}",
         "('a', '-', 'b') 2 2"},
        {"{{ ['a', \"it's\", 'q\"\\'', '\\n'] }}", "['a', \"it's\", 'q\"\\'', '\\n']"},
        {"{{ '<a>' | e }} {{ ('<' | safe) + '<b' }} {{ ('<' | safe) ~ '<' }}",
         "&lt;a&gt; <&lt;b <<"},
        {"{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent(2, true) }}", "a\n  b\n\n  c|  a\n  b"},
        {"{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'Ab'.isalpha() }} {{ 'AB'.isupper() }}",
         "True False True True"},
        {"{{ ' a-b, c_d '|wordcount }} {{ '[]'|wordcount }}", "3 0"},
        {"{{ 'abc'|center(7) }}|{{ 'a'.ljust(3) }}|{{ '7'.zfill(3) }}|{{ 'abc'|reverse }}",
         "  abc  |a  |007|cba"});
}

TEST(judges_truth_as_python_does)
{
    EXPECT_ROWS(
        {"{{ '' or 'x' }} {{ 0 or [] or {} or 'y' }} {{ 1 and 2 }} {{ not none }}", "x y 2 True"},
        {"{% if [] %}a{% elif {} %}b{% elif 0.0 %}c{% elif '0' %}d{% endif %}", "d"},
        {"{{ 'a' if false }}|{{ 'a' if true else 'b' }}", "|a"},
        {"{{ x is defined }} {{ x is undefined }} {{ x }}|{{ x|default('d') }}", "False True |d"},
        {"{{ ''|default('d') }}|{{ ''|default('d', true) }}", "|d"},
        {"{{ none is none }} {{ 1 is number }} {{ true is boolean }} {{ true is number }}",
         "True True True True"},
        {"{{ 'a' is string }} {{ {} is mapping }} {{ {} is sequence }} {{ 'a' is sequence }}",
         "True True True True"},
        {"{{ 1 is iterable }} {{ x is iterable }} {{ 3 is odd }} {{ 4 is divisibleby 2 }}",
         "False True True True"},
        {"{{ 1 is not string }} {{ 2 is eq(2) }} {{ 2 is in [1, 2] }} {{ 'A' is upper }}",
         "True True True True"},
        {"{{ x == y }} {{ none == false }} {{ [1] == [1.0] }} {{ (1,) == [1] }}",
         "True False True False"},
        {"{{ 1 is integer }} {{ 1.0 is float }} {{ range is callable }}", "True True True"});
}

TEST(handles_lists_and_dicts_as_python_does)
{
    EXPECT_ROWS(
        {"{{ [1, 2, 3][1:] }} {{ [1, 2, 3][-2] }} {{ (1, 2) + (3,) }} {{ [1] * 2 }}",
         "[2, 3] 2 (1, 2, 3) [1, 1]"},
        {"{{ {'a': 1, 'b': none} }} {{ {'a': 1}.a }} {{ {'a': 1}['b'] }}|{{ {'a': 1}.get('b', 2) "
         "}}",
         "{'a': 1, 'b': None} 1 |2"},
        {"{{ {'items': 1}['items'] }} {{ {'b': 1, 'a': 2}|dictsort }}", "1 [('a', 2), ('b', 1)]"},
        {"{{ ['b', 'A', 'c']|sort }} {{ [3, 1, 2]|sort(reverse=true) }}",
         "['A', 'b', 'c'] [3, 2, 1]"},
        {"{{ [{'n': 2}, {'n': 1}]|sort(attribute='n')|map(attribute='n')|list }}", "[1, 2]"},
        {"{{ ['a', 'b']|map('upper')|join('-') }} {{ [1, 2, 3]|select('odd')|list }}",
         "A-B [1, 3]"},
        {"{{ [{'r': 'x'}, {'r': 'y'}]|selectattr('r', 'equalto', 'x')|list }}", "[{'r': 'x'}]"},
        {"{{ [1, 2, 3]|reject('eq', 2)|list }} {{ [1, 2, 1]|unique|list }}", "[1, 3] [1, 2]"},
        {"{{ [1, 2, 3]|first }} {{ [1, 2, 3]|last }} {{ []|first }}|{{ [3, 1]|min }}{{ [3, 1]|max "
         "}}",
         "1 3 |13"},
        {"{{ [1, 2]|sum }} {{ [1, 2, 3]|batch(2)|list }} {{ range(3)|list }} {{ range(5, 0, "
         "-2)|list }}",
         "3 [[1, 2], [3]] [0, 1, 2] [5, 3, 1]"},
        {"{% set g = [1, 2]|map('string') %}{{ g|list }}{{ g|list }}{{ 'x' if g }}",
         "['1', '2'][]x"},
        {"{{ {'a': 1}|items|list }} {{ {'a': 1}.keys()|list }} {{ 'a' in {'a': 1} }}",
         "[('a', 1)] ['a'] True"},
        {"{{ [[1, 2], [3]]|map('length')|join(',') }} {{ [1, 2]|join }}", "2,1 12"},
        {"[{{ []|map('upper')|join('-') }}{{ nothing|map('upper')|join('-') }}]", "[]"},
        {"{{ {1: 'a', true: 'b', 'x': []} }} {{ dict(a=1, **{'b': 2}) }}",
         "{1: 'b', 'x': []} {'a': 1, 'b': 2}"},
        {"{{ [{'n': 1}, {}]|sort(attribute='x')|length }} {{ [true]|sum|round(1) }}", "2 1"},
        {"{{ [1, 2].index(2) }} {{ [1, 1].count(1) }} {{ 'abc'|list }}", "1 2 ['a', 'b', 'c']"});
}

TEST(runs_every_statement)
{
    EXPECT_ROWS(
        {"{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.first }}{{ loop.last }} {% endfor %}",
         "1TrueFalse 2FalseFalse 3FalseTrue "},
        {"{% for i in [1, 2, 3] %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }} "
         "{% endfor %}",
         "23 132 21 "},
        {"{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ loop.index }}:{{ i }} {% endfor %}",
         "1:2 2:4 "},
        {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
        {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"},
        {"{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
        {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}"
         "{% endif %}{{ i }}{% endfor %}",
         "013"},
        {"{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x "
         "}}",
         "01 02 0"},
        {"{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}"
         "{{ n.x }}",
         "3"},
        {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}x{{ a }}{% endset %}{{ t|upper }}", "12X1"},
        {"{% set t | upper | replace('A', 'o') %}banana{% endset %}{{ t }}", "BoNoNo"},
        {"{% filter upper %}a{{ 1 }}b{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}"
         "{{ a }}",
         "A1B3"},
        {"{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }} {% endmacro %}"
         "{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5, a=4) }}{{ m() }}",
         "121 123 454 2 "},
        {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
         "3210"},
        {"{% macro o() %}{% macro i(x) %}<{{ x }}>{% endmacro %}{{ i(1) }}{{ i(2) }}{% endmacro %}"
         "{{ o() }}",
         "<1><2>"},
        {"{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, k=3) }}",
         "(1, 2){'k': 3}"},
        {"{% macro m() %}[{{ caller('x') }}]{% endmacro %}{% call(a) m() %}{{ a }}!{% endcall %}",
         "[x!]"},
        {"{% macro m() %}{{ y }}{% endmacro %}{% set y = 5 %}{{ m() }}", "5"},
        {"{% for i in [1, [2, [3]]] recursive %}{% if i is number %}{{ i }}@{{ loop.depth }} "
         "{% else %}{{ loop(i) }}{% endif %}{% endfor %}",
         "1@1 2@2 3@3 "},
        {"{% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "aFalse"},
        {"{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b') }} {% endfor %}",
         "Truea Falseb Truea "},
        {"{% if true %}{% set z = 1 %}{% endif %}{{ z }}", "1"},
        {"{{ strftime_now('%d %b %Y, %A %H:%M:%S %j %-m %p') }}",
         "09 Mar 2025, Sunday 14:05:06 068 3 PM"});
}

TEST(trims_white_space_around_tags)
{
    EXPECT_ROWS(
        {"a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
        {"a {% if true %} b {% endif %} c", "a  b  c"}, {"a\n  {{ 1 }}\nb", "a\n  1\nb"},
        {"a \n {%- if true -%} \n b {%- endif %} c", "ab c"}, {"a \n {{- 1 -}} \n b", "a1b"},
        {"a\n  {%+ if true +%}\nb{% endif %}", "a\n  \nb"},
        {"a\n  {# note #}\nb{#- x -#} c", "a\nbc"},
        {"{% raw %}{{ x }}{% y %}{% endraw %}|{%- raw -%} {{ {%- endraw %}", "{{ x }}{% y %}|{{"},
        {"a\r\nb\rc\n\n", "a\nb\nc\n"},
        {"{{ {'a': {'b': 1}}['a']['b'] }}{{ '}}' }}{{ \"%}\" }}", "1}}%}"},
        {"  {% set x = 1 %}\n  {{ x }}", "  1"}, {"", ""});
}

TEST(writes_and_reads_json)
{
    EXPECT_ROWS(
        {"{{ {'a': [1, 2.0, none, true], 'b': '<\xc3\xa9\"\\n>'}|tojson }}",
         "{\"a\": [1, 2.0, null, true], \"b\": \"<\xc3\xa9\\\"\\n>\"}"},
        {"{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}",
         "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
        {"{{ {'b': 1, 'a': 2}|tojson(separators=(',', ':'), sort_keys=true) }}",
         "{\"a\":2,\"b\":1}"},
        {"{{ '\xc3\xa9\xf0\x9f\x98\x80'|tojson(ensure_ascii=true) }}", "\"\\u00e9\\ud83d\\ude00\""},
        {"{{ {1: 2, none: 3, true: 4, 2.5: 5}|tojson }}", "{\"1\": 4, \"null\": 3, \"2.5\": 5}"});
    expect("{{ v }} {{ v|tojson }}", "{\"v\": [1e400, -0.0, 123456789012345678901234567890, 1E2]}",
           "[1e400, -0.0, 123456789012345678901234567890, 1E2] " /* digits as they came */
           "[1e400, -0.0, 123456789012345678901234567890, 1E2]");
    expect("{{ v[0] + 1 }} {{ v[0]|tojson }} {{ v[1] > v[2] }} {{ v[1] < 2.5e19 }}",
           "{\"v\": [1.50, 18446744073709551615, 9223372036854775808]}", "2.5 1.50 True True");
    expect("{{ v }}", "{\"v\": \"\\ud83d\\ude00\\u0041\\/\", \"v\": \"last\"}", "last");
}

/* ---- failures ---- */

static void refuse(const char *source, const char *json, pith_status want, const char *says)
{
    struct jinja_text out;
    err = (pith_error){0};
    pith_status status = run(source, json, NULL, &out, &err);
    if (status != want || strstr(err.message, says) == NULL)
        fail_msg("%s\nstatus %d, \"%s\"; should say \"%s\"", source, status, err.message, says);
}

TEST(fails_with_the_sentences_of_jinja2)
{
    static const struct row rows[] = {
        {"{{ raise_exception('no ' ~ 1) }}", "no 1"},
        {"{{ x.y }}", "'x' is undefined"},
        {"{{ {}.y.z }}", "'dict object' has no attribute 'y'"},
        {"{{ x() }}", "'x' is undefined"},
        {"{{ [].append(1) }}", "access to attribute 'append' of 'list object' is unsafe."},
        {"{{ {}.update({}) }}", "unsafe"},
        {"{{ 1 + 'a' }}", "unsupported operand type(s) for +: 'int' and 'str'"},
        {"{{ 1 // 0 }}", "division by zero"},
        {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
        {"{{ -9223372036854775807 - 2 }}", "beyond 64 bits"},
        {"{{ 2 ** 64 }}", "beyond 64 bits"},
        {"{{ 1 < 'a' }}", "'<' not supported between instances of 'int' and 'str'"},
        {"{% for i in 5 %}{% endfor %}", "'int' object is not iterable"},
        {"{% set a, b = [1] %}", "not enough values to unpack (expected 2, got 1)"},
        {"{% set a, b = [1, 2, 3] %}", "too many values to unpack (expected 2)"},
        {"{{ none|length }}", "object of type 'NoneType' has no len()"},
        {"{{ [1]|map('upper')|length }}", "object of type 'generator' has no len()"},
        {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "macro 'm'"},
        {"{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", "no keyword argument 'b'"},
        {"{{ 'x'|indent(3, foo=1) }}", "indent() got an unexpected keyword argument 'foo'"},
        {"{{ x|tojson }}", "Object of type Undefined is not JSON serializable"},
        {"{% set d = {} %}{% set d.y = 1 %}", "non-namespace object"},
        {"{{ 'a' in 5 }}", "argument of type 'int' is not iterable"},
        {"{{ [1, 'a']|sort }}", "not supported between"},
        {"{{ range(1000000) }}", "Range too big"},
        {"{{ [1][::0] }}", "slice step cannot be zero"},
        {"{{ i[1:] }}", "'i' is undefined"},
        {"{{ {}.x|int }}", "'dict object' has no attribute 'x'"},
        {"{{ 5() }}", "'int' object is not callable"},
        {"{{ '%d' % 'x' }}", "a number is required"},
        {"{{ '%s %s' % 'x' }}", "not enough arguments"},
    };
    for (size_t i = 0; i < PI_LEN(rows); i++)

        refuse(rows[i].source, NULL, PITH_INVALID, rows[i].want);
}

TEST(refuses_bad_syntax_with_its_line)
{
    static const struct row rows[] = {
        {"{{ 1 +", "line 1"},
        {"\n\n{% if %}", "line 3"},
        {"{% if x %}", "if lacks"},
        {"{% for x %}{% endfor %}", "lacks its in"},
        {"{% endif %}", "'endif'"},
        {"{% include 'x' %}", "'include'"},
        {"{{ 'a }}", "string"},
        {"{{ (1] }}", "bracket"},
        {"{# x", "comment"},
        {"{% raw %}", "raw"},
        {"{{ a ? b }}", "character"},
        {"{% break %}", "outside of loops"},
        {"{{ f(a=1, 2) }}", "wrong"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "non-default"},
        {"{% set true = 1 %}", "constant"},
        {"{{ '\\u12' }}", "escape"},
        {"{{ a is b is c }}", "chain"},
    };
    for (size_t i = 0; i < PI_LEN(rows); i++)
        refuse(rows[i].source, NULL, PITH_UNSUPPORTED, rows[i].want);
    refuse("{{ 1|nothing }}", NULL, PITH_UNSUPPORTED, "No filter named 'nothing'.");
    refuse("{{ 1 is nothing }}", NULL, PITH_UNSUPPORTED, "No test named 'nothing'.");
    expect("{% if false %}{{ 1|nothing }}{% endif %}ok", NULL, "ok");
}

TEST(refuses_bad_json_with_its_byte)
{
    static const char *const texts[] = {
        "{\"a\": 01}",
        "{\"a\": 1.}",
        "{\"a\": +1}",
        "{\"a\": \"\\ud800\"}",
        "{\"a\": \"\\x\"}",
        "{\"a\": \"\n\"}",
        "{\"a\" 1}",
        "{\"a\": [1,]}",
        "{\"a\": tru}",
        "{\"a\": \"",
        "{} x",
        "{\"a\": \"\xff\"}",
        "{\"a\": nan}",
        "",
        "{\"a\": 1,}",
    };
    for (size_t i = 0; i < PI_LEN(texts); i++)
        refuse("{{ a }}", texts[i], PITH_INVALID, "JSON: at byte");
}

/* ---- limits ---- */

static void limited(const char *source, struct jinja_limits limits, const char *says)
{
    struct jinja_text out;
    err = (pith_error){0};
    assert_int_equal(run(source, NULL, &limits, &out, &err), PITH_INVALID);
    if (strstr(err.message, says) == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\"", source, err.message, says);
}

TEST(limits_end_what_would_not_end)
{
    struct jinja_limits l;
    jinja_limits_default(&l);
    l.steps = 1000000;
    limited(
        "{% set q = range(9999)|list %}{% for a in q %}{% for b in q %}x{% endfor %}{% endfor %}",
        l, "steps");
    jinja_limits_default(&l);
    limited("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", l, "nested deeper");
    limited("{% set n = namespace() %}{% set n.n = n %}{{ n }}", l, "nested deeper");
    limited(
        "{% set n = namespace(l=[]) %}{% for i in range(2000) %}{% set n.l = [n.l] %}{% endfor %}"
        "{{ n.l|tojson }}",
        l, "nested deeper");
    limited("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}"
            "{% endfor %}",
            l, "limit of");
    limited("{{ 'x' * 9223372036854775807 }}", l, "limit of");
    limited("{{ [1] * 9223372036854775807 }}", l, "limit of");
    limited("{{ '%999999s' % 1 }}{{ '%9999999s' % 1 }}", l, "width");
    l.output = 10;
    limited("{{ 'x' * 11 }}", l, "limit of 10 bytes");
    jinja_limits_default(&l);
    l.steps = 10;
    limited("{{ 1 + 1 + 1 + 1 + 1 + 1 }}", l, "limit of 10 steps");
    jinja_limits_default(&l);
    l.memory = 100000;
    limited("{% for i in range(9999) %}{% set x = [i] %}{% endfor %}", l, "limit of 100000 bytes");
}

/* Brackets, signs and blocks as deep as a text is long. */
TEST(refuses_deep_nesting)
{
    static const char *const parts[] = {"(", "[", "-", "not ", "{%if 1%}", "f(", "{'a':", "x if "};
    for (size_t i = 0; i < PI_LEN(parts); i++) {
        size_t len = strlen(parts[i]), n = 100000;
        char *text = malloc(len * n + 8);
        bool block = parts[i][0] == '{' && parts[i][1] == '%';
        strcpy(text, block ? "   " : "{{ ");
        for (size_t k = 0; k < n; k++)
            memcpy(text + 3 + k * len, parts[i], len);
        text[3 + n * len] = 0;
        refuse(text, NULL, PITH_UNSUPPORTED, "chat template: ");
        free(text);
    }
    char *sum = malloc(500000);
    strcpy(sum, "{{ 1");
    for (size_t k = 0; k < 100000; k++)
        memcpy(sum + 4 + 2 * k, "+1", 2);
    strcpy(sum + 200004, " }}");
    refuse(sum, NULL, PITH_INVALID, "nested deeper");
    free(sum);
}

/* ---- marks of users' text ---- */

/* A user's bytes as they are, the template's as dots. */
static void expect_marks(const char *source, const char *json, const char *want)
{
    struct jinja_text out;
    err = (pith_error){0};
    if (run(source, json, NULL, &out, &err) != PITH_OK)
        fail_msg("%s\nfails: %s", source, err.message);
    for (size_t i = 0; i < out.len; i++)
        if (out.user != NULL ? out.user[i] == 0 : !out.from_user)
            out.data[i] = '.';
    if (strcmp(out.data, want) != 0)
        fail_msg("%s\nis     \"%s\"\nshould \"%s\"", source, out.data, want);
    jinja_text_free(&out);
}

TEST(marks_what_a_user_wrote)
{
    static const char json[] = "{\"u\": \"<|x|>\", \"v\": \" ab\\n\", \"d\": {\"k\": [\"w\", 1]}}";
    static const struct row rows[] = {
        {"a{{ u }}b", ".<|x|>."},
        {"{{ 'a' + u + 'b' }}{{ 'c' ~ u }}", ".<|x|>..<|x|>"},
        {"{{ ('a' + u + 'b')[1:4] }}", "<|x"},
        {"{{ ('a' + u)[::-1] }}", ">|x|<."},
        {"{{ u|upper }}{{ ('q' ~ u).title() }}", "<|X|>.<|X|>"},
        {"{{ 'a-b'|replace('-', u) }}{{ u|replace('x', 'y') }}", ".<|x|>.<|.|>"},
        {"{{ v|trim }}{{ ('  ' ~ v).strip() }}", "abab"},
        {"{{ [u, 'b']|join('-') }}{{ ['a', 'b']|join(u) }}", "<|x|>...<|x|>."},
        {"{{ u|tojson }}{{ d|tojson }}", ".<|x|>...k.....w......"},
        {"{{ d }}", "..k.....w......"},
        {"{{ u|list }}", "..<....|....x....|....>.."},
        {"{{ '%s!' % u }}{{ '{}?'.format(u) }}", "<|x|>.<|x|>."},
        {"{% set t %}[{{ u }}]{% endset %}{{ t }}", ".<|x|>."},
        {"{% macro m(x) %}({{ x }}){% endmacro %}{{ m(u) }}", ".<|x|>."},
        {"{% for c in ('-' ~ u) %}{{ c }}{% endfor %}", ".<|x|>"},
        {"{{ ('a,' ~ u).split(',')[1] }}{{ u.split('|')|join }}", "<|x|><x>"},
        {"{{ u|e }}", "&lt;|x|&gt;"},
        {"{{ ('a\\n' ~ u)|indent(2) }}", "....<|x|>"},
        {"{{ u * 2 }}{{ u|length }}{{ u == '<|x|>' }}", "<|x|><|x|>....."},
        {"{% for k, v in d.items() %}{{ k }}{% endfor %}", "k"},
        {"{{ '<|x|>' }}", "....."},
    };
    for (size_t i = 0; i < PI_LEN(rows); i++)
        expect_marks(rows[i].source, json, rows[i].want);
}

/* ---- memory ---- */

/* Wherever an allocation fails, the failure is told and nothing leaks. */
TEST(failing_memory_leaks_nothing)
{
    static const char source[] =
        "{% macro m(a) %}{{ a|tojson(indent=2) }}{% endmacro %}{% for x in list if x %}{% set t %}"
        "{{ x ~ loop.index }}{% endset %}{{ m({'k': t * 9000}) }}{% endfor %}"
        "{{ list|sort|map('upper')|join(',') }}{{ 'a b'.split() }}{{ '%s' % 'x' }}";
    static const char json[] = "{\"list\": [\"b\", \"a\", \"c\"]}";
    int64_t before = pi_mem_used(PI_MEM_OTHER) + pi_mem_used(PI_MEM_MODEL);
    bool whole = false;
    for (int64_t n = 1; !whole; n++) {
        struct jinja_text out;
        err = (pith_error){0};
        pi_mem_fail_at(n, false);
        pith_status status = run(source, json, NULL, &out, &err);
        whole = pi_mem_fail_at(0, false) < n;
        assert_int_equal(status, whole ? PITH_OK : PITH_NOMEM);
        if (status == PITH_OK)
            jinja_text_free(&out);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER) + pi_mem_used(PI_MEM_MODEL), before);
    }
}
