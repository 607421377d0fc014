/*
 * test_grammar.c - grammars in GBNF: accepted and refused texts, masks against tokens tried one by
 * one, triggers, failures of memory, and the sampler that follows a grammar.
 */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/sampler.h"
#include "tests/support/grammar_rig.h"

TEST_GROUP(rig_setup, rig_teardown);

TEST(reads_every_part_of_gbnf)
{
    ALLOWS("root ::= \"a\" \"b\"", "ab");
    ALLOWS("root ::= \"a\" | \"b\" | ", "a", "b", "");
    ALLOWS("root ::= [a-c]+ [^a-c]? # a comment\n", "a", "abcx", "cé");
    FORBIDS("root ::= [a-c]+ [^a-c]?", "d", "axx");
    ALLOWS("root ::= (\"x\" |\n  \"y\"\n)* z\nz ::= \"z\"", "z", "xyxz");
    ALLOWS("root ::= \"a\"{2} [0-9]{1,3} \"b\"{2,}", "aa1bb", "aa123bbbb");
    FORBIDS("root ::= \"a\"{2} [0-9]{1,3} \"b\"{2,}", "aab", "aa1234", "b");
    ALLOWS("root ::= \"\\x41\\u00e9\\U0001F600\\n\\\"\\\\\"", "Aé😀\n\"\\");
    ALLOWS("\xef\xbb\xbfroot ::= \"a\"", "a"); /* a byte order mark */
    ALLOWS("root ::= .", "a", "\n", "é", "😀");
    ALLOWS("root ::= [a\\]-]+", "a]-");
    ALLOWS("ws ::= | \" \" ws\nroot ::=\n  \"a\" ws \"b\"", "ab", "a   b");
    ALLOWS("a-rule_1 ::= \"x\"\n\n# between\nroot ::= a-rule_1\n | \"y\"", "x", "y");
}

/* Bytes that are no character come out of no set of characters. */
TEST(sets_hold_characters_and_no_other_bytes)
{
    FORBIDS("root ::= .*", "\xff", "\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
            "\xe0\x80");
    ALLOWS("root ::= .*", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf");
    ALLOWS("root ::= [ß-ö]", "ß", "à", "ö");
    FORBIDS("root ::= [ß-ö]", "÷", "a", "Þ");
    ALLOWS("root ::= [\\u07f0-\\U00010010]", "߰", "ࠀ", "\xef\xbf\xbf", "\xf0\x90\x80\x90");
    FORBIDS("root ::= [\\u07f0-\\U00010010]", "\xf0\x90\x80\x91", "߯");
    /* Every character of a set and none else. */
    pith_grammar *g = rig_grammar("root ::= [^\\u0300-\\u0fff]", NULL);
    for (uint32_t c = 1; c < 0x110000; c += 1 + c / 64) {
        char text[5] = {0};
        if (c >= 0xd800 && c <= 0xdfff)
            continue;
        pi_utf8_encode(c, text);
        assert_int_equal(rig_judge(g, text), c >= 0x300 && c <= 0xfff ? 0 : 2);
    }
    pith_grammar_free(g);
}

TEST(follows_recursion)
{
    ALLOWS("root ::= \"(\" root \")\" root | ", "", "()", "(()())()", "((()))");
    FORBIDS("root ::= \"(\" root \")\" root | ", ")", "())");
    ALLOWS("root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9] | \"(\" e \")\"", "1+(2+3)", "((1))");
    /* Of every text that is the same forwards and backwards, the middle is nowhere marked. */
    ALLOWS("root ::= \"a\" root \"a\" | \"b\" root \"b\" | [ab]?", "abba", "aabaa", "bab");
    char deep[4002];
    memset(deep, '(', 2000);
    memset(deep + 2000, ')', 2000);
    deep[4000] = '\0';
    ALLOWS("root ::= \"(\" root \")\" | ", deep);
}

TEST(refuses_bad_rules)
{
    rig_refuse("root ::= root \"a\" | \"b\"", PITH_INVALID, "rule root: it begins with itself");
    rig_refuse("root ::= a? root \"b\" | \"c\"\na ::= \"a\"", PITH_INVALID, "begins with itself");
    rig_refuse("root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", PITH_INVALID, "begins with itself");
    rig_refuse("root ::= \"a\" root", PITH_INVALID, "ever ends");
    rig_refuse("root ::= x", PITH_INVALID, "rule x is not defined");
    rig_refuse("x ::= \"a\"", PITH_INVALID, "rule root is not there");
    rig_refuse("root ::= \"a\nroot2 ::= \"b\"", PITH_INVALID, "line 2");
    rig_refuse("root ::= [a", PITH_INVALID, "line 1");
    rig_refuse("root ::= (\"a\"", PITH_INVALID, "parenthesis");
    rig_refuse("root ::= \"a\"{3,1}", PITH_INVALID, "wrong way");
    rig_refuse("root ::= \"a\"{99999}", PITH_UNSUPPORTED, "65536");
    rig_refuse("root ::= <[12]>", PITH_UNSUPPORTED, "tokens");
    rig_refuse("root ::= \"\\q\"", PITH_INVALID, "escape");
    rig_refuse("root ::= \"\\ud800\"", PITH_INVALID, "Unicode");
    rig_refuse("root ::= \"a\"\nroot ::= \"b\"", PITH_INVALID, "there already");
    rig_refuse("root = \"a\"", PITH_INVALID, "::=");
    rig_refuse("root ::= \"\xff\"", PITH_INVALID, "UTF-8");
    rig_refuse("", PITH_INVALID, "not there");
}

/* Limits have sentences of their own. */
TEST(limits_have_their_sentences)
{
    static char deep[40000], wide[600000];
    size_t n = 0;
    memset(deep, '(', 15000);
    memcpy(deep, "root ::= ", 9);
    strcpy(deep + 15000, "\"a\"");
    rig_refuse(deep, PITH_UNSUPPORTED, "grammar: it is nested deeper");
    /* Many alternatives that begin alike are no ambiguity. */
    n = (size_t)snprintf(wide, sizeof(wide), "{\"enum\":[0");
    for (int i = 0; i < 20000; i++)
        n += (size_t)snprintf(wide + n, sizeof(wide) - n, ",\"v%d\"", i);
    snprintf(wide + n, sizeof(wide) - n, "]}");
    ALLOWS(wide, "0", "\"v0\"", "\"v19999\"");
    FORBIDS(wide, "\"v20000", "\"v19999x");
    memset(deep, 'a', 39999);
    deep[39999] = '\0';
    ALLOWS("root ::= \"a\"{30000} [a-z]{0,60000}", deep);
}

TEST(masks_are_what_trying_each_token_gives)
{
    static const struct {
        const char *grammar;
        const char *texts[6];
    } cases[] = {
        {"root ::= \"true\" | \"false\" \",\" | \"abcd\"", {"", "t", "tr", "a", "abcd", "false"}},
        {"root ::= \"{\" m? \"}\"\nm ::= \"\\\"\" [^\"]* \"\\\":\" v\nv ::= \"[\" m \"]\" | root",
         {"", "{", "{\"", "{\"ab", "{\"a\":{\"é", "{\"a\":[\"b\":{}"}},
        {"root ::= [^\"\\x00-\\x1f\\x7f\\\\]{2,5} \"\\\",\"",
         {"", "a", "ab", "abcd", "abcde", "\xc3"}},
        {"root ::= (\"a\" | \"ab\" | \"abc\") (\"bc\" | \"c\")? x*\nx ::= \"a\" | \"\\\"\"",
         {"", "a", "ab", "abc", "abcc", "aa"}},
        {"root ::= .*", {"", "é", "\xc3", "\xf0\x9f", "a\"", "\n"}},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pith_grammar *g = rig_grammar(cases[i].grammar, NULL);
        for (int k = 0; k < 6; k++)
            n += rig_check_mask(g, cases[i].texts[k]);
        pith_grammar_free(g);
    }
    assert_true(n > 500);
}

/* Two states of one grammar do not see each other, and a refused token changes nothing. */
TEST(states_do_not_see_each_other)
{
    pith_error why;
    pith_grammar *g = rig_grammar("root ::= \"ab\" | \"true\"", NULL);
    pith_grammar_state *a = rig_state(g), *b = rig_state(g);
    assert_int_equal(pith_grammar_state_accept(a, RIG_WORD(6), &why), PITH_OK); /* ab */
    assert_true(pith_grammar_state_must_end(a));
    assert_false(pith_grammar_state_can_end(b));
    assert_int_equal(pith_grammar_state_accept(b, 2, &why), PITH_INVALID);
    assert_int_equal(pith_grammar_state_accept(b, 1, &why), PITH_INVALID); /* no bytes */
    assert_int_equal(pith_grammar_state_accept(b, 1000000, &why), PITH_INVALID);
    assert_int_equal(pith_grammar_state_accept_bytes(b, "trx", 3, &why), PITH_INVALID);
    assert_int_equal(pith_grammar_state_accept(b, RIG_WORD(0), &why), PITH_OK); /* tr */
    assert_int_equal(pith_grammar_state_accept_bytes(b, "ue", 2, &why), PITH_OK);
    assert_int_equal(pith_grammar_state_accept(b, 2, &why), PITH_OK);
    assert_int_equal(pith_grammar_state_accept_bytes(b, "a", 1, &why), PITH_INVALID);
    pith_grammar_state_free(a);
    pith_grammar_state_free(b);
    pith_grammar_free(g);
}

TEST(a_trigger_switches_the_grammar_on)
{
    const char *const go[] = {"<go>", "##"};
    pith_grammar_params p = {.trigger = go, .n_trigger = 2};
    pith_error why;
    uint64_t bits[8];
    pith_grammar *g = rig_grammar("root ::= \"1\" [23]", &p);
    pith_grammar_state *s = rig_state(g);
    assert_int_equal(pith_grammar_state_mask(s, bits, &why), PITH_OK);
    assert_true((bits[0] & 1) != 0 && pith_grammar_state_can_end(s));
    assert_int_equal(pith_grammar_state_accept_bytes(s, "x<g<go", 6, &why), PITH_OK);
    /* "<go>x": the trigger, and then a text that the grammar forbids. */
    assert_int_equal(pith_grammar_state_accept_bytes(s, ">x", 2, &why), PITH_INVALID);
    assert_false(pi_grammar_state_allows(s, RIG_WORD(17)));
    assert_true(pi_grammar_state_allows(s, RIG_WORD(16)));
    assert_true(pi_grammar_state_is_free(s));
    assert_int_equal(pith_grammar_state_accept_bytes(s, ">1", 2, &why), PITH_OK);
    assert_false(pi_grammar_state_is_free(s) || pith_grammar_state_can_end(s));
    assert_int_equal(pith_grammar_state_accept_bytes(s, "2", 1, &why), PITH_OK);
    assert_true(pith_grammar_state_must_end(s));
    pith_grammar_state_free(s);
    pith_grammar_free(g);
    p.again = true;
    g = rig_grammar("root ::= \"1\" [23]", &p);
    s = rig_state(g);
    assert_int_equal(pith_grammar_state_accept_bytes(s, "##12 and <go>13 <", 17, &why), PITH_OK);
    assert_true(pi_grammar_state_is_free(s));
    assert_int_equal(pith_grammar_state_accept_bytes(s, "go>4", 4, &why), PITH_INVALID);
    pith_grammar_state_free(s);
    pith_grammar_free(g);
}

/* Triggers that are a part of the text, and those that count at its beginning only. */
TEST(triggers_may_stand_anywhere_in_the_text)
{
    const char *const go[] = {"{x", "<go>"};
    pith_grammar_params p = {
        .trigger = go, .n_trigger = 2, .n_trigger_first = 1, .keeps_trigger = true, .again = true};
    static const struct {
        const char *text;
        int good;
    } rows[] = {
        {"{x}", 1},    {" \n {x}", 1},  {"{xy", 0},       {"<go>1", 1},
        {"<go>}", 0},  {"a{xy", 1},     {"a {xy", 1},     {"a<go>1{xy", 1},
        {"{x}{xy", 1}, {"{x}<go>2", 0}, {"{x}<go>1b", 1}, {"\n{x}\n{xy", 1},
    };
    pith_error why;
    pith_grammar *g = rig_grammar("root ::= \"{x}\" | \"<go>1\"", &p);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pith_grammar_state *s = rig_state(g);
        pith_status status =
            pith_grammar_state_accept_bytes(s, rows[i].text, strlen(rows[i].text), &why);
        if ((status == PITH_OK) != (rows[i].good != 0))
            fail_msg("%s: %s", rows[i].text, status == PITH_OK ? "is taken" : why.message);
        pith_grammar_state_free(s);
    }
    pith_grammar_free(g);
    p.n_trigger_first = 3;
    assert_int_equal(rig_make("root ::= [a]", &p, &g, &why), PITH_INVALID);
    assert_string_equal(why.message, "n_trigger_first: 3 is not between 0 and 2");
}

/* The sampler's choice under a grammar, from logits that prefer other tokens. */
TEST(the_sampler_stays_in_the_grammar)
{
    float logits[400];
    pith_error why;
    char text[64], piece[64];
    size_t len = 0;
    int32_t n = pi_vocab_size(rig_vocab);
    pith_grammar *g = rig_grammar("root ::= \"ab\" [0-9]{2} \"true\"?", NULL);
    for (float temperature = 0.0f; temperature <= 1.0f; temperature += 1.0f) {
        pith_sampler *s = NULL;
        pith_sample_params p;
        pith_sample_params_default(&p);
        p.temperature = temperature;
        p.grammar = g;
        assert_int_equal(pith_sampler_create(&p, n, &s, &why), PITH_OK);
        for (int32_t i = 0; i < n; i++)
            logits[i] = (float)(i % 7);
        logits[3 + 'z'] = 50.0f;
        pith_sampler_accept(s, 3 + 'q'); /* the prompt */
        for (len = 0; !pi_sampler_must_end(s);) {
            int32_t id = pith_sampler_sample(s, logits);
            assert_true(id >= 0);
            pith_sampler_accept(s, id);
            if (id == 2)
                break;
            size_t k = rig_bytes(id, piece);
            memcpy(text + len, piece, k);
            len += k;
        }
        text[len] = '\0';
        assert_int_equal(rig_judge(g, text), 2);
        pith_sampler_free(s);
    }
    pith_grammar_free(g);
}

static pith_grammar *either(const char *first, const char *second)
{
    pith_grammar *g = rig_grammar(first, NULL);
    pi_grammar_or(g, rig_grammar(second, NULL));
    return g;
}

/* A text may be of either of two grammars for as long as it fits both. */
TEST(a_text_is_of_one_of_two_grammars)
{
    static const struct {
        const char *text;
        int judged; /* 2: it may end, 1: it is a beginning */
        bool open;
    } rows[] = {{"", 1, true},       {"ca", 1, true},     {"cat", 2, false},  {"call", 1, false},
                {"call7", 2, false}, {"{ab", 1, false},   {"{ab}", 2, false}, {"x", 0, true},
                {"cax", 0, true},    {"callx", 0, false}, {"same", 2, true}};
    pith_grammar *g = either("root ::= \"call\" [0-9] | \"same\"",
                             "root ::= \"{\" [a-z]* \"}\" | \"cat\" | \"same\"");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pith_grammar_state *s = rig_state(g);
        assert_int_equal(rig_judge(g, rows[i].text), rows[i].judged);
        for (const char *c = rows[i].text; *c != '\0'; c++)
            (void)pith_grammar_state_accept_bytes(s, c, 1, NULL);
        assert_int_equal(pi_grammar_state_is_open(s), rows[i].open);
        pith_grammar_state_free(s);
        if (rows[i].judged > 0)
            rig_check_mask(g, rows[i].text);
    }
    pith_grammar_free(g);
}

/* A token that fits neither makes the text one of the second. */
TEST(the_sampler_chooses_one_of_two_grammars_as_if_it_were_free)
{
    static const struct {
        char likes[4]; /* from the likeliest on */
        const char *says;
    } rows[] = {{"zc{", "{}"}, {"cz{", "c1"}, {"{cz", "{}"}, {"c}1", "c1"}, {"zb1", "b2"}};
    float logits[400];
    pith_error why;
    pith_grammar *g = either("root ::= \"c\" \"1\" | \"b1\"", "root ::= \"{\" \"}\" | \"b2\"");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pith_sampler *s = NULL;
        pith_sample_params p;
        char text[8] = "";
        pith_sample_params_default(&p);
        p.temperature = 0.0f;
        p.grammar = g;
        assert_int_equal(pith_sampler_create(&p, pi_vocab_size(rig_vocab), &s, &why), PITH_OK);
        memset(logits, 0, sizeof(logits));
        for (int k = 0; k < 3; k++)
            logits[3 + rows[i].likes[k]] = 9.0f - (float)k;
        for (int n = 0; !pi_sampler_must_end(s); n++) {
            int32_t id = pith_sampler_sample(s, logits);
            assert_true(id >= 3 && n < 7);
            pith_sampler_accept(s, id);
            text[n] = (char)(id - 3);
        }
        assert_string_equal(text, rows[i].says);
        pith_sampler_free(s);
    }
    pith_grammar_free(g);
}

/* A control token is no text, unless the grammar has it as a marker. */
TEST(a_marker_counts_as_its_text)
{
    uint64_t bits[8];
    pith_grammar *g = rig_grammar("root ::= \"<s>\" [a<]", NULL);
    for (int marked = 0; marked < 2; marked++) {
        pith_grammar_state *s = rig_state(g);
        assert_int_equal(pith_grammar_state_mask(s, bits, NULL), PITH_OK);
        assert_int_equal(bits[0] >> 1 & 1, marked);
        assert_int_equal(pith_grammar_state_accept(s, 1, NULL),
                         marked != 0 ? PITH_OK : PITH_INVALID);
        assert_int_equal(pith_grammar_state_mask(s, bits, NULL), PITH_OK);
        assert_int_equal(bits[0] >> 1 & 1, 0); /* its text does not stand here */
        pith_grammar_state_free(s);
        pi_grammar_add_marker(g, 1);
        pi_grammar_add_marker(g, 1); /* once is enough */
    }
    pith_grammar_free(g);
}

/* No token at all is a failure with a sentence, and never a free token. */
TEST(no_token_at_all_is_a_failure)
{
    float logits[400] = {0};
    pith_error why;
    pith_sampler *s = NULL;
    pith_sample_params p;
    pith_logit_bias ban[2] = {{3 + 'q', -INFINITY}, {3 + 'r', -INFINITY}};
    pith_grammar *g = rig_grammar("root ::= [qr]", NULL);
    pith_sample_params_default(&p);
    p.grammar = g;
    p.bias = ban;
    p.n_bias = 2;
    assert_int_equal(pith_sampler_create(&p, 10, &s, &why), PITH_INVALID); /* another vocabulary */
    assert_int_equal(pith_sampler_create(&p, pi_vocab_size(rig_vocab), &s, &why), PITH_OK);
    assert_int_equal(pith_sampler_sample(s, logits), -1);
    assert_non_null(strstr(pi_sampler_error(s)->message, "no token"));
    assert_int_equal(pith_sampler_sample(s, logits), -1);
    pith_sampler_free(s);
    pith_grammar_free(g);
}

/* Ways to read a text that double with each byte are followed together. */
TEST(follows_ambiguous_readings_together)
{
    static const char *const grammars[] = {
        "root ::= a\na ::= \"x\" a a \"y\" | \"x\" a a | \"x\"",
        "root ::= a\na ::= \"x\" a? a?",
        "root ::= e\ne ::= t (\"+\" e)? | t (\"+\" t)*\nt ::= \"x\" | \"x\" e \"y\" | \"x\" e",
        "root ::= \"x\"* a \"x\"*\na ::= \"x\" a \"x\" | \"x\"",
    };
    pith_error why = {.status = PITH_OK};
    for (int k = 0; k < 4; k++) {
        pith_grammar *g = rig_grammar(grammars[k], NULL);
        pith_grammar_state *s = rig_state(g);
        for (int i = 0; i < 201; i++)
            if (pith_grammar_state_accept_bytes(s, "x", 1, &why) != PITH_OK)
                fail_msg("%s: byte %d: %s", grammars[k], i, why.message);
        assert_true(pith_grammar_state_can_end(s));
        pith_grammar_state_free(s);
        pith_grammar_free(g);
    }
}

/* ---- random grammars over a and b, against the sets of their texts ---- */

#define N_RULE 3
#define LEN_MAX 7
#define N_TEXT (1 << (LEN_MAX + 1)) /* a text is its letters as bits behind a 1 */

struct random_grammar {
    int n_alt[N_RULE], n_part[N_RULE][3];
    int part[N_RULE][3][3]; /* 0, 1: a letter; 2 + r: rule r */
    bool has[N_RULE][N_TEXT];
};

static void make_random(uint64_t *rng, struct random_grammar *r)
{
    memset(r, 0, sizeof(*r));
    for (int i = 0; i < N_RULE; i++) {
        r->n_alt[i] = 1 + (int)rng_below(rng, 3);
        for (int a = 0; a < r->n_alt[i]; a++) {
            r->n_part[i][a] = (int)rng_below(rng, 4);
            for (int k = 0; k < r->n_part[i][a]; k++)
                r->part[i][a][k] = (int)rng_below(rng, 2 + N_RULE);
        }
    }
}

static void write_random(const struct random_grammar *r, char *text)
{
    for (int i = 0; i < N_RULE; i++) {
        text += sprintf(text, "%s ::= ", i == 0 ? "root" : i == 1 ? "r-b" : "r-c");
        for (int a = 0; a < r->n_alt[i]; a++) {
            text += sprintf(text, "%s\"\"", a > 0 ? " | " : "");
            for (int k = 0; k < r->n_part[i][a]; k++) {
                static const char *const names[] = {"\"a\"", "\"b\"", "root", "r-b", "r-c"};
                text += sprintf(text, " %s", names[r->part[i][a][k]]);
            }
        }
        text += sprintf(text, "\n");
    }
}

static int text_len(int text)
{
    int n = 0;
    while (text >> (n + 1) != 0)
        n++;
    return n;
}

/* Texts of an alternative's parts from k on, behind `text`. */
static bool add_texts(struct random_grammar *r, int rule, int a, int k, int text)
{
    bool more = false;
    if (k == r->n_part[rule][a]) {
        more = !r->has[rule][text];
        r->has[rule][text] = true;
        return more;
    }
    int part = r->part[rule][a][k];
    if (part < 2)
        return text_len(text) < LEN_MAX && add_texts(r, rule, a, k + 1, 2 * text + part);
    for (int other = 1; other < N_TEXT; other++) {
        int n = text_len(other);
        if (r->has[part - 2][other] && text_len(text) + n <= LEN_MAX)
            more |= add_texts(r, rule, a, k + 1, (text << n) | (other - (1 << n)));
    }
    return more;
}

static void compare_random(struct random_grammar *r, const pith_grammar *g, const char *grammar)
{
    bool more = true;
    while (more) {
        more = false;
        for (int i = 0; i < N_RULE; i++)
            for (int a = 0; a < r->n_alt[i]; a++)
                more |= add_texts(r, i, a, 0, 1);
    }
    for (int text = 1; text < N_TEXT; text++) {
        char letters[LEN_MAX + 1] = "";
        pith_error why;
        pith_grammar_state *s = rig_state(g);
        bool good = true, begins = r->has[0][text];
        for (int i = 0, n = text_len(text); i < n; i++) {
            letters[i] = (text >> (n - 1 - i) & 1) != 0 ? 'b' : 'a';
            good = good && pith_grammar_state_accept_bytes(s, letters + i, 1, &why) == PITH_OK;
        }
        for (int longer = 2 * text; longer < N_TEXT && !begins; longer++)
            for (int shift = 1; shift <= LEN_MAX; shift++)
                begins |= longer >> shift == text && r->has[0][longer];
        if ((good && pith_grammar_state_can_end(s)) != r->has[0][text])
            fail_msg("%s\"%s\" %s", grammar, letters, good ? "may end" : "is refused");
        if (begins && !good)
            fail_msg("%s\"%s\" begins a text and is refused", grammar, letters);
        pith_grammar_state_free(s);
    }
}

TEST(random_grammars_judge_as_a_plain_reader_does)
{
    static struct random_grammar r;
    char text[1024];
    uint64_t rng = 11;
    int n = 0;
    for (int i = 0; i < 400 / TEST_STRIDE; i++) {
        pith_grammar *g = NULL;
        pith_error why;
        make_random(&rng, &r);
        write_random(&r, text);
        pith_status status = rig_make(text, NULL, &g, &why);
        assert_true(status == PITH_OK || status == PITH_INVALID); /* begins with itself, no end */
        if (status == PITH_OK)
            compare_random(&r, g, text);
        n += status == PITH_OK;
        pith_grammar_free(g);
    }
    printf("%d random grammars\n", n);
    assert_true(n > 10);
}

/* A text by a seed: each of its tokens is one of the mask. */
static uint64_t walk_hash(const pith_grammar *g, uint64_t seed)
{
    uint64_t bits[8], hash = seed;
    pith_error why;
    pith_grammar_state *s = rig_state(g);
    for (int i = 0; i < 300 && !pith_grammar_state_must_end(s); i++) {
        int32_t ids[400], n = 0;
        if (pith_grammar_state_mask(s, bits, &why) != PITH_OK)
            break;
        for (int32_t id = 0; id < pi_vocab_size(rig_vocab); id++)
            if ((bits[id / 64] >> (id % 64) & 1) != 0)
                ids[n++] = id;
        if (n == 0)
            break;
        int32_t id = ids[rng_below(&seed, (uint64_t)n)];
        hash = (hash ^ (uint64_t)id) * 0x100000001b3u;
        if (pith_grammar_state_accept(s, id, &why) != PITH_OK)
            break;
    }
    pith_grammar_state_free(s);
    return hash;
}

struct walker {
    const pith_grammar *g;
    uint64_t hash[20];
};

static void *walk_all(void *user)
{
    struct walker *w = user;
    for (uint64_t i = 0; i < 20; i++)
        w->hash[i] = walk_hash(w->g, i);
    return NULL;
}

/* Threads share a grammar, and each gets the result that it gets alone from a fresh one. */
TEST(threads_share_a_grammar)
{
    static const char schema[] =
        "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
        "\"string\","
        "\"maxLength\":9},\"b\":{\"$ref\":\"#\"}},\"additionalProperties\":{\"type\":\"number\"}}}";
    struct walker alone = {.g = rig_grammar(schema, NULL)}, w[4];
    pthread_t thread[4];
    walk_all(&alone);
    pith_grammar *g = rig_grammar(schema, NULL);
    for (int i = 0; i < 4; i++) {
        w[i].g = g;
        assert_int_equal(pthread_create(&thread[i], NULL, walk_all, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_memory_equal(w[i].hash, alone.hash, sizeof(alone.hash));
    }
    pith_grammar_free(g);
    pith_grammar_free((pith_grammar *)alone.g);
}

/* Wherever memory fails there is NOMEM, and nothing is lost. */
TEST(failing_memory_loses_nothing)
{
    static const char *const grammars[] = {
        "root ::= \"{\" a* \"}\"\na ::= \"\\\"\" [^\"]{2,40} \"\\\"\" | root",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}"
        ","
        "\"b\":{\"type\":\"string\",\"pattern\":\"^a+$\"}},\"required\":[\"b\"]}"};
    for (int i = 0; i < 2; i++) {
        for (int64_t n = 1;; n += 1 + n / 20) {
            uint64_t bits[8];
            pith_error why;
            pith_grammar *g = NULL;
            pith_grammar_state *s = NULL;
            int64_t used = pi_mem_used(PI_MEM_OTHER);
            pi_mem_fail_at(n, true);
            pith_status status = rig_make(grammars[i], NULL, &g, &why);
            if (status == PITH_OK)
                status = pith_grammar_state_create(g, &s, &why);
            if (status == PITH_OK)
                status = pith_grammar_state_mask(s, bits, &why);
            if (status == PITH_OK)
                status = pith_grammar_state_accept_bytes(s, "{\"", 2, &why);
            if (status == PITH_OK)
                status = pith_grammar_state_mask(s, bits, &why);
            pi_mem_fail_at(0, false);
            pith_grammar_state_free(s);
            pith_grammar_free(g);
            assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
            if (status == PITH_OK)
                break;
            assert_int_equal(status, PITH_NOMEM);
        }
    }
}
