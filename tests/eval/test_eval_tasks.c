/* The haystacks of `pith eval`, needle and RULER. Every prompt is read again here by other means
   than it was written, and must have the one answer that it claims. One file, though a long one:
   both use the same counter of tokens and the same prose. */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"

#include <math.h>
#include <string.h>

#include "eval/needle.h"
#include "eval/ruler.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- tokens without a model: a token is a run of letters, a digit, or another byte ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int32_t count_text(const char *s)
{
    int32_t n = 0;
    while (*s != '\0') {
        if (is_letter(*s)) {
            while (is_letter(*s))
                s++;
            n++;
        } else {
            n += *s != ' ';
            s++;
        }
    }
    return n;
}

static pith_status count_tokens(void *user, const char *text, const char *prefix, int32_t *n,
                                pith_error *why)
{
    (void)user;
    (void)why;
    *n = 1 + count_text(text) + (prefix != NULL ? count_text(prefix) : 0);
    return PITH_OK;
}

static const struct eval_counter counter = {count_tokens, NULL};

/* Prose of distinct sentences. */
static char *make_prose(int n_sentence)
{
    struct eval_text t = {0};
    for (int i = 0; i < n_sentence; i++)
        eval_text_printf(&t, "Sentence %d of the prose tells of a %s %s.%s", i,
                         eval_adjectives.word[i % eval_adjectives.n],
                         eval_things.word[i % eval_things.n], i % 7 == 6 ? "\n" : " ");
    assert_false(t.failed);
    return t.data;
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        n++;
    return n;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* ---- fitting ---- */

struct bent {
    int n_build;
};

/* size a's up to 100, then two per size. */
static pith_status build_bent(void *user, int32_t size, struct eval_prompt *out, pith_error *why)
{
    struct bent *b = user;
    (void)why;
    b->n_build++;
    for (int32_t i = 0; i < size; i++)
        eval_text_add(&out->text, i < 100 ? "a " : "a b ");
    eval_text_add(&out->prefix, "is");
    return PITH_OK;
}

TEST(fit_is_exact)
{
    for (int32_t want = 2; want < 400; want += 7) {
        struct bent b = {0};
        struct eval_prompt p = {0};
        assert_int_equal(eval_fit("bent", build_bent, &b, 0, 1 << 20, want, &counter, &p, &err),
                         PITH_OK);
        /* 1 for the start, 1 for the prefix; beyond 102 a size takes two tokens. */
        assert_true(p.n_token == want || (want > 102 && p.n_token == want - 1));
        int32_t n = 0;
        assert_int_equal(
            count_tokens(NULL, p.text.data != NULL ? p.text.data : "", p.prefix.data, &n, &err),
            PITH_OK);
        assert_int_equal(n, p.n_token);
        assert_true(b.n_build < 30);
        eval_prompt_free(&p);
    }
}

TEST(fit_says_how_many_tokens_it_needs)
{
    struct bent b = {0};
    struct eval_prompt p = {0};
    assert_int_equal(eval_fit("bent", build_bent, &b, 50, 60, 51, &counter, &p, &err),
                     PITH_INVALID);
    assert_non_null(strstr(err.message, "bent: 51 tokens are too few, its own text takes 52"));
    assert_int_equal(eval_fit("bent", build_bent, &b, 50, 60, 1000, &counter, &p, &err), PITH_OK);
    assert_int_equal(p.n_token, 62);
    eval_prompt_free(&p);
}

/* ---- haystacks ---- */

TEST(prose_wraps_and_keeps_space)
{
    struct eval_prose prose = {"one  two\nthree ", 15};
    struct eval_text t = {0};
    eval_prose_append(&prose, 0, 5, false, &t);
    assert_string_equal(t.data, "one  two\nthree one  two");
    eval_text_clear(&t);
    eval_prose_append(&prose, 5, 4, true, &t);
    assert_string_equal(t.data, "two three one two");
    eval_text_clear(&t);
    struct eval_prose tight = {"a b", 3};
    eval_prose_append(&tight, 0, 4, false, &t);
    assert_string_equal(t.data, "a b a b");
    eval_text_free(&t);
    assert_int_equal(eval_prose_check("x", &tight, &err), PITH_OK);
    assert_int_equal(eval_prose_check("x", &(struct eval_prose){" \n", 2}, &err), PITH_INVALID);
    assert_string_equal(err.message, "x: the haystack holds no word");
}

TEST(places_are_sentence_ends)
{
    static const char text[] = "One. Two is 3.5 (\"so\"). \"Three?\" Four";
    struct eval_places p = {0};
    eval_places_find(text, strlen(text), &p);
    assert_int_equal(p.n, 4);
    assert_int_equal(p.at[1], 4);
    assert_int_equal(p.at[2], strlen("One. Two is 3.5 (\"so\")."));
    assert_int_equal(p.at[3], strlen("One. Two is 3.5 (\"so\"). \"Three?\""));
    struct eval_insert inserts[] = {{"A.", 0}, {"B.", 1}, {"C.", 1}, {"D.", 3}};
    struct eval_text out = {0};
    size_t offset[4];
    eval_places_insert(text, strlen(text), &p, inserts, 4, &out, offset);
    assert_string_equal(out.data, "A. One. B. C. Two is 3.5 (\"so\"). \"Three?\" D. Four");
    assert_int_equal(offset[1], strlen("A. One. "));
    assert_int_equal(strncmp(out.data + offset[3], "D.", 2), 0);
    eval_text_free(&out);
    eval_places_find("no end here", 11, &p);
    assert_int_equal(p.n, 4); /* the start and three words */
    eval_places_find("", 0, &p);
    assert_int_equal(p.n, 1);
    eval_places_free(&p);
}

/* ---- needle ---- */

static struct eval_needle_params needle_params(enum eval_needle_style style, const char *hay)
{
    return (struct eval_needle_params){.style = style,
                                       .haystack = hay,
                                       .haystack_len = hay != NULL ? strlen(hay) : 0,
                                       .n_needle = 1,
                                       .n_repeat = 1,
                                       .n_predict = 32};
}

static struct needle_text make_needle(const struct eval_needle_params *p, int32_t length,
                                      double depth, int32_t repeat)
{
    struct needle_item item = {.seed = 5, .repeat = repeat, .length = length, .depth = depth};
    struct needle_text t = {0};
    if (eval_needle_make(p, &item, &counter, &t, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return t;
}

TEST(the_papers_prompt_holds_its_needle)
{
    char *hay = make_prose(100);
    struct eval_needle_params p = needle_params(EVAL_NEEDLE_PAPER, hay);
    static const int32_t lengths[] = {60, 300, 2000};
    for (size_t l = 0; l < COUNT(lengths); l++) {
        for (int d = 0; d <= 4; d++) {
            struct needle_text t = make_needle(&p, lengths[l], d / 4.0, 0);
            const char *text = t.prompt.text.data;
            assert_true(t.prompt.n_token <= lengths[l] && t.prompt.n_token > lengths[l] - 4);
            assert_int_equal(count_of(text, "PURPLE ELEPHANT 7742"), 1);
            assert_true(ends_with(text, " What is the secret code word mentioned earlier? Answer"
                                        " with just the code word and number, nothing else:"));
            /* A sentence ends before the needle, which stands as near to the depth as one does. */
            const char *at = strstr(text, "The secret code word is PURPLE ELEPHANT 7742.");
            assert_non_null(at);
            assert_true(at == text || at[-2] == '.');
            char *before = strdup(text);
            before[at - text] = '\0';
            double total = t.prompt.n_token - 1 - count_text(t.needle) - count_text(t.question);
            assert_true(fabs(t.at - count_text(before) / total) < 1e-9);
            assert_true(fabs(t.at - d / 4.0) <= 14 / total);
            free(before);
            assert_string_equal(t.prompt.refs.at[0], "PURPLE ELEPHANT 7742");
            size_t n = strlen(t.before);
            assert_memory_equal(at - n, t.before, n);
            assert_memory_equal(at + strlen(t.needle), t.after, strlen(t.after));
            eval_needle_text_free(&t);
        }
    }
    free(hay);
}

/* Checkers and prompts together: the fact in a prompt passes only as an answer. */
TEST(needle_prompt_is_no_answer)
{
    char *hay = make_prose(100);
    for (int style = EVAL_NEEDLE_PAPER; style <= EVAL_NEEDLE_PITH; style++) {
        struct eval_needle_params p = needle_params((enum eval_needle_style)style, hay);
        for (int d = 0; d <= 2; d++) {
            struct needle_text t = make_needle(&p, 300, d / 2.0, 0);
            struct eval_needle_key key = {t.word,   t.number, t.question,
                                          t.needle, t.before, t.after};
            char *text = t.prompt.text.data;
            assert_int_equal(eval_needle_check(text, &key), EVAL_FAIL);
            assert_int_equal(eval_needle_check(t.needle, &key), EVAL_PASS);
            assert_int_equal(eval_needle_check(t.prompt.refs.at[0], &key), EVAL_PASS);
            char *cut = strstr(text, t.needle) + strlen(t.needle);
            *cut = '\0'; /* an echo up to the needle only; at depth 0 it is the bare fact */
            if (t.before[0] != '\0')
                assert_int_equal(eval_needle_check(text, &key), EVAL_FAIL);
            eval_needle_text_free(&t);
        }
    }
    free(hay);
}

TEST(decoys_look_like_the_fact_and_are_not)
{
    char *hay = make_prose(300);
    for (int style = EVAL_NEEDLE_PAPER; style <= EVAL_NEEDLE_PITH; style++) {
        struct eval_needle_params p = needle_params((enum eval_needle_style)style, hay);
        p.n_needle = 6;
        struct needle_text t = make_needle(&p, 600, 0.5, 1);
        const char *text = t.prompt.text.data;
        const char *head =
            style == EVAL_NEEDLE_PAPER ? "The secret code word of " : "The password of ";
        assert_int_equal(count_of(text, head), 6);
        assert_int_equal(count_of(text, t.needle), 1);
        assert_int_equal(count_of(text, t.prompt.refs.at[0]), 1);
        char name[32] = "";
        assert_int_equal(sscanf(t.needle + strlen(head), "%31s", name), 1);
        assert_non_null(strstr(t.question, name)); /* the question is about this one .. */
        int n_named = 0;
        for (const char *at = strstr(text, head); at != NULL; at = strstr(at + 1, head))
            n_named += strncmp(at + strlen(head), name, strlen(name)) == 0;
        assert_int_equal(n_named, 1); /* .. and no other fact is */
        eval_needle_text_free(&t);
    }
    free(hay);
}

/* As count_tokens, but a needle right before the question takes three tokens more. */
static pith_status count_with_edge(void *user, const char *text, const char *prefix, int32_t *n,
                                   pith_error *why)
{
    pith_status status = count_tokens(user, text, prefix, n, why);
    *n += strstr(text, "7742. What") != NULL ? 3 : 0;
    return status;
}

/* The depth in tokens puts the needle after the last sentence, which makes the text too long. Words
   are then taken off the end of that sentence. */
TEST(a_needle_moves_back_when_its_place_goes_away)
{
    struct eval_counter edge = {count_with_edge, NULL};
    struct eval_text hay = {0};
    for (int i = 0; i < 200; i++)
        eval_text_add(&hay, "a");
    eval_text_add(&hay, ". b b b b b b b b b b b b b b b b b b b. ");
    struct eval_needle_params p = needle_params(EVAL_NEEDLE_PAPER, hay.data);
    struct needle_item item = {.seed = 5, .depth = 0.9};
    struct needle_text t = {0};
    int32_t none = 0;
    assert_int_equal(count_tokens(NULL,
                                  "The secret code word is PURPLE ELEPHANT 7742. What is the "
                                  "secret code word mentioned earlier? Answer with just the code "
                                  "word and number, nothing else:",
                                  NULL, &none, &err),
                     PITH_OK);
    item.length = none + 22; /* twenty words and two full stops */
    if (eval_needle_make(&p, &item, &edge, &t, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const char *at = strstr(t.prompt.text.data, " "
                                                "The secret code word is PURPLE ELEPHANT 7742. b");
    assert_non_null(at);
    assert_int_equal(at - t.prompt.text.data, 201); /* behind the first sentence */
    assert_true(t.prompt.n_token <= item.length);
    assert_int_equal(strlen(t.prompt.text.data), t.prompt.text.len);
    eval_needle_text_free(&t);
    eval_text_free(&hay);
}

TEST(items_differ_and_a_seed_repeats_them)
{
    char *hay = make_prose(300);
    struct eval_needle_params p = needle_params(EVAL_NEEDLE_PITH, hay);
    struct needle_text a = make_needle(&p, 400, 0.5, 1), b = make_needle(&p, 400, 0.5, 1);
    struct needle_text c = make_needle(&p, 400, 0.5, 2);
    assert_string_equal(a.prompt.text.data, b.prompt.text.data);
    assert_string_not_equal(a.prompt.text.data, c.prompt.text.data);
    assert_string_not_equal(a.needle, c.needle);
    assert_string_equal(a.prompt.prefix.data, "\nAnswer:");
    eval_needle_text_free(&a);
    eval_needle_text_free(&b);
    eval_needle_text_free(&c);
    free(hay);
}

TEST(needle_refuses_lengths_and_words_that_do_not_fit)
{
    struct needle_item item = {.length = 10, .depth = 0.5};
    struct needle_text t = {0};
    struct eval_needle_params p = needle_params(EVAL_NEEDLE_PAPER, NULL);
    assert_int_equal(eval_needle_make(&p, &item, &counter, &t, &err), PITH_INVALID);
    eval_needle_text_free(&t);
    item.length = 500;
    p.n_needle = 3;
    p.question = "What is it?";
    assert_int_equal(eval_needle_make(&p, &item, &counter, &t, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "{name}"));
    p = needle_params(EVAL_NEEDLE_PAPER, "  \n");
    assert_int_equal(eval_needle_make(&p, &item, &counter, &t, &err), PITH_INVALID);
    eval_needle_text_free(&t);
    p = needle_params(EVAL_NEEDLE_PAPER, "one\0two");
    p.haystack_len = 7; /* a zero byte would hide the question */
    assert_int_equal(eval_needle_make(&p, &item, &counter, &t, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "zero byte"));
    eval_needle_text_free(&t);
    p = needle_params(EVAL_NEEDLE_PAPER, NULL);
    p.needle = "The key is RED FOX 12."; /* and asked for is the purple elephant */
    assert_int_equal(eval_needle_make(&p, &item, &counter, &t, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "does not hold"));
    eval_needle_text_free(&t);
    p = needle_params(EVAL_NEEDLE_PAPER, NULL);
    p.word = "A WORD THAT IS SO LONG THAT NO MODEL WILL EVER SAY THE WHOLE OF IT";
    assert_int_equal(eval_needle_make(&p, &item, &counter, &t, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "word"));
    eval_needle_text_free(&t);
}

/* ---- RULER ---- */

static struct eval_prompt make_ruler(const char *task, struct ruler_item item)
{
    struct eval_prompt p = {0};
    const struct ruler_task *t = eval_ruler_find(task);
    assert_non_null(t);
    if (eval_ruler_make(t, &item, &counter, &p, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_true(p.n_token <= item.length - t->n_predict);
    return p;
}

TEST(ruler_fills_the_length)
{
    char *text = make_prose(500);
    static const int32_t lengths[] = {1500, 4096, 6000};
    for (int t = 0; t < RULER_N_TASK && eval_ruler_tasks[t].build != eval_build_qa; t++) {
        for (size_t l = 0; l < COUNT(lengths); l++) {
            struct ruler_item item = {.seed = 3,
                                      .length = lengths[l],
                                      .text = text,
                                      .text_len = strlen(text),
                                      .example = true};
            struct eval_prompt p = make_ruler(eval_ruler_tasks[t].name, item);
            /* A line more would be too many; the words of cwe come with all their repetitions. */
            int32_t slack = strcmp(eval_ruler_tasks[t].name, "cwe") == 0 ? 30 : 90;
            assert_true(p.n_token > lengths[l] - eval_ruler_tasks[t].n_predict - slack);
            struct eval_prompt again = make_ruler(eval_ruler_tasks[t].name, item);
            assert_string_equal(p.text.data, again.text.data);
            item.sample = 1;
            struct eval_prompt other = make_ruler(eval_ruler_tasks[t].name, item);
            assert_string_not_equal(p.text.data, other.text.data);
            assert_string_not_equal(p.refs.at[0], other.refs.at[0]);
            eval_prompt_free(&p);
            eval_prompt_free(&again);
            eval_prompt_free(&other);
        }
    }
    free(text);
}

struct niah_case {
    const char *task;
    enum eval_haystack haystack;
    int n_ref;
    int n_needle; /* with the needles' own haystack: at least */
    const char *first;
};

TEST(ruler_niah_has_its_keys_and_values)
{
    static const struct niah_case cases[] = {
        {"niah_single_1", EVAL_HAYSTACK_TASK, 1, 1, "A special magic number is hidden"},
        {"niah_single_2", EVAL_HAYSTACK_TASK, 1, 1, "A special magic number is hidden"},
        {"niah_single_3", EVAL_HAYSTACK_NOISE, 1, 1, "A special magic uuid is hidden"},
        {"niah_multikey_1", EVAL_HAYSTACK_TASK, 1, 4, "A special magic number is hidden"},
        {"niah_multikey_2", EVAL_HAYSTACK_TASK, 1, 20, "A special magic number is hidden"},
        {"niah_multikey_3", EVAL_HAYSTACK_TASK, 1, 10, "A special magic uuid is hidden"},
        {"niah_multivalue", EVAL_HAYSTACK_TEXT, 4, 4, "Some special magic numbers are hidden"},
        {"niah_multiquery", EVAL_HAYSTACK_TASK, 4, 4, "Some special magic numbers are hidden"},
    };
    char *text = make_prose(500);
    for (size_t i = 0; i < COUNT(cases) * 4; i++) {
        const struct niah_case *c = &cases[i / 4];
        struct ruler_item item = {.seed = 3,
                                  .sample = (int32_t)(i % 4),
                                  .length = 2000,
                                  .haystack = c->haystack,
                                  .text = text,
                                  .text_len = strlen(text)};
        struct eval_prompt p = make_ruler(c->task, item);
        assert_int_equal(strncmp(p.text.data, c->first, strlen(c->first)), 0);
        int n = count_of(p.text.data, "One of the special magic ");
        assert_true(c->n_needle < 10 ? n == c->n_needle : n >= c->n_needle);
        assert_int_equal(p.refs.n, c->n_ref);
        const char *last = strrchr(p.text.data, '\n') + 1;
        assert_int_equal(strncmp(last, "What ", 5), 0);
        for (int32_t k = 0; k < p.refs.n; k++) {
            /* The sentence around the value names a key that the question names. */
            char end[80], key[64];
            snprintf(end, sizeof(end), " is: %s.", p.refs.at[k]);
            assert_int_equal(count_of(p.text.data, end), 1);
            char *stop = strstr(p.text.data, end), *start = stop;
            while (strncmp(start, " for ", 5) != 0)
                start--;
            snprintf(key, sizeof(key), "%.*s", (int)(stop - start - 5), start + 5);
            assert_non_null(strstr(last, key));
            assert_non_null(strstr(p.prefix.data, key));
            /* No other sentence is about this key, but where a key has several values. */
            char about[96];
            snprintf(about, sizeof(about), " for %s is:", key);
            assert_int_equal(count_of(p.text.data, about),
                             strcmp(c->task, "niah_multivalue") == 0 ? 4 : 1);
        }
        eval_prompt_free(&p);
    }
    free(text);
}

TEST(ruler_haystacks_fit_their_tasks)
{
    char *text = make_prose(500);
    struct ruler_item item = {.length = 1500, .text = text, .text_len = strlen(text)};
    const struct ruler_task *single = eval_ruler_find("niah_single_2");
    assert_int_equal(eval_ruler_haystack(single, &item), EVAL_HAYSTACK_TEXT);
    assert_int_equal(eval_ruler_haystack(eval_ruler_find("niah_single_1"), &item),
                     EVAL_HAYSTACK_NOISE);
    assert_int_equal(eval_ruler_haystack(eval_ruler_find("cwe"), &item), EVAL_HAYSTACK_TASK);
    struct eval_prompt p = make_ruler("niah_single_2", item);
    assert_true(count_of(p.text.data, "Sentence ") > 50);
    eval_prompt_free(&p);
    item.haystack = EVAL_HAYSTACK_NEEDLES;
    p = make_ruler("niah_single_2", item);
    assert_true(count_of(p.text.data, "One of the special magic numbers") > 20);
    eval_prompt_free(&p);
    item.text = NULL;
    item.haystack = EVAL_HAYSTACK_TASK;
    p = make_ruler("niah_single_2", item);
    assert_true(count_of(p.text.data, EVAL_NOISE) > 20);
    eval_prompt_free(&p);
    item.haystack = EVAL_HAYSTACK_TEXT;
    item.text = text;
    p = make_ruler("vt", item);
    assert_true(count_of(p.text.data, "Sentence ") > 50);
    assert_int_equal(count_of(p.text.data, "VAR "), 9);
    eval_prompt_free(&p);
    free(text);
}

/* The frame of a prompt is that of the benchmark's own, as far as it was shipped. */
TEST(ruler_prompts_have_the_published_frame)
{
    FILE *f = fopen(test_data("questions/ruler4096_niah_multikey_3.jsonl"), "rb");
    static char line[1 << 16];
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    json_t *json = json_loads(line, 0, NULL);
    assert_non_null(json);
    const char *shipped = json_string_value(json_object_get(json, "input"));
    struct eval_prompt p =
        make_ruler("niah_multikey_3", (struct ruler_item){.seed = 1, .length = 4096});
    struct eval_text ours = {0};
    eval_text_printf(&ours, "%s%s", p.text.data, p.prefix.data);
    /* Every uuid is masked; then first, second and last line must be the same. */
    char *texts[2] = {strdup(shipped), strdup(ours.data)};
    for (int i = 0; i < 2; i++) {
        for (char *s = texts[i]; *s != '\0'; s++) {
            if (strlen(s) >= 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-')
                memset(s, '#', 36);
        }
    }
    size_t first = strcspn(texts[0], "\n"), second = strcspn(texts[0] + first + 1, "\n");
    assert_int_equal(strncmp(texts[0], texts[1], first + 1 + second + 1), 0);
    assert_string_equal(strrchr(texts[0], '\n'), strrchr(texts[1], '\n'));
    free(texts[0]);
    free(texts[1]);
    eval_text_free(&ours);
    eval_prompt_free(&p);
    json_decref(json);
}

/* Follows the assignments of a text from a value; returns how many variables hold it. */
static int follow(const char *text, const char *value, char names[][8], int cap)
{
    int n = 0;
    char line[64];
    snprintf(line, sizeof(line), " = %s\n", value);
    const char *at = strstr(text, line);
    while (at != NULL && n < cap) {
        const char *start = at;
        while (strncmp(start, "VAR ", 4) != 0)
            start--;
        snprintf(names[n], 8, "%.*s", (int)(at - start - 4), start + 4);
        snprintf(line, sizeof(line), " = VAR %s \n", names[n]);
        n++;
        const char *next = strstr(text, line);
        if (next != NULL)
            assert_true(next > at); /* in order */
        at = next;
    }
    return n;
}

TEST(ruler_vt_assigns_along_a_chain)
{
    for (int32_t sample = 0; sample < 10; sample++) {
        struct ruler_item item = {
            .seed = 9, .sample = sample, .length = 1400, .example = sample % 2 == 0};
        struct eval_prompt p = make_ruler("vt", item);
        char names[9][8], value[16] = "";
        const char *last = strrchr(p.text.data, '\n');
        assert_int_equal(sscanf(last,
                                "\nQuestion: Find all variables that are assigned the value"
                                " %15[0-9] in the text above.",
                                value),
                         1);
        assert_int_equal(follow(p.text.data, value, names, 9), 5);
        assert_int_equal(p.refs.n, 5);
        for (int i = 0; i < 5; i++) {
            assert_string_equal(names[i], p.refs.at[i]);
            assert_int_equal(strlen(names[i]), 5);
        }
        assert_int_equal(count_of(p.text.data, "Question: Find all"), item.example ? 2 : 1);
        assert_true(ends_with(p.prefix.data, ", they are:"));
        if (item.example) { /* its own answer is right, too */
            const char *said = strstr(p.text.data, ", they are: ") + strlen(", they are: ");
            const char *asked = strstr(p.text.data, "assigned the value ") + 19;
            snprintf(value, sizeof(value), "%.5s", asked);
            assert_int_equal(follow(p.text.data, value, names, 9), 5);
            char want[64];
            snprintf(want, sizeof(want), "%s %s %s %s %s\n\n", names[0], names[1], names[2],
                     names[3], names[4]);
            assert_int_equal(strncmp(said, want, strlen(want)), 0);
        }
        eval_prompt_free(&p);
    }
}

struct tally {
    char word[32];
    int n;
};

/* Counts the words of text [up to end], by count. */
static int by_count(const void *a, const void *b)
{
    return ((const struct tally *)b)->n - ((const struct tally *)a)->n;
}

static int tally_words(const char *text, const char *end, bool numbered, struct tally *out, int cap)
{
    int n = 0, index = 1;
    while (text < end) {
        char word[32];
        int used = 0, number = 0;
        if (numbered) {
            assert_int_equal(sscanf(text, "%d. %31s%n", &number, word, &used), 2);
            assert_int_equal(number, index++);
        } else {
            assert_int_equal(sscanf(text, "%31s%n", word, &used), 1);
        }
        text += used;
        text += *text == ' ';
        int i = 0;
        while (i < n && strcmp(out[i].word, word) != 0)
            i++;
        assert_true(i < cap);
        if (i == n) {
            memcpy(out[n].word, word, sizeof(word));
            out[n++].n = 0;
        }
        out[i].n++;
    }
    qsort(out, (size_t)n, sizeof(*out), by_count);
    return n;
}

static void check_top(const struct tally *words, int n, int first, int n_ref,
                      const struct eval_strings *refs)
{
    assert_int_equal(refs->n, n_ref);
    assert_true(n >= first + n_ref);
    if (n > first + n_ref) /* the answer is one */
        assert_true(words[first + n_ref - 1].n > words[first + n_ref].n);
    for (int i = first; i < first + n_ref; i++)
        assert_true(eval_strings_has(refs, words[i].word));
}

TEST(ruler_cwe_has_ten_most_common_words)
{
    static struct tally words[4000];
    static const int32_t lengths[] = {1200, 4096, 12000};
    for (size_t l = 0; l < COUNT(lengths); l++) {
        struct ruler_item item = {.seed = 2, .length = lengths[l], .example = l != 0};
        struct eval_prompt p = make_ruler("cwe", item);
        const char *list = p.text.data;
        for (const char *at = list; (at = strstr(at, "appear most often.\n")) != NULL; at++)
            list = at + strlen("appear most often.\n");
        int n = tally_words(list, strrchr(p.text.data, '\n'), true, words, 4000);
        check_top(words, n, 0, 10, &p.refs);
        assert_int_equal(words[0].n, lengths[l] < 4096 ? 6 : 30);
        assert_int_equal(words[n - 1].n, lengths[l] < 4096 ? 1 : 3);
        assert_int_equal(count_of(p.text.data, "Question:"), item.example ? 2 : 1);
        if (item.example) { /* the worked answer names its ten */
            const char *start = strchr(p.text.data, '\n') + 1;
            const char *end = strstr(start, "\nQuestion:");
            n = tally_words(start, end, true, words, 4000);
            const char *said = strstr(end, "in the list are: ") + strlen("in the list are: ");
            for (int i = 0; i < 10; i++) {
                char word[32] = "";
                int number, used;
                assert_int_equal(sscanf(said, "%d. %31s%n", &number, word, &used), 2);
                said += used;
                int k = 0;
                while (strcmp(words[k].word, word) != 0)
                    k++;
                assert_int_equal(words[k].n, words[0].n);
            }
        }
        eval_prompt_free(&p);
    }
}

TEST(ruler_fwe_has_three_most_frequent_words)
{
    static struct tally words[1000];
    static const int32_t lengths[] = {160, 250, 1000, 4096};
    for (size_t l = 0; l < COUNT(lengths); l++) {
        struct ruler_item item = {.seed = 2, .length = lengths[l]};
        struct eval_prompt p = make_ruler("fwe", item);
        const char *start = strstr(p.text.data, "coded words. ") + strlen("coded words. ");
        int n = tally_words(start, strrchr(p.text.data, '\n'), false, words, 1000);
        assert_string_equal(words[0].word, "...");
        check_top(words, n, 1, 3, &p.refs);
        assert_true(words[1].n > words[2].n && words[2].n > words[3].n);
        eval_prompt_free(&p);
    }
}

TEST(ruler_refuses_lengths_that_are_too_short)
{
    struct eval_prompt p = {0};
    for (int t = 0; t < RULER_N_TASK && eval_ruler_tasks[t].build != eval_build_qa; t++) {
        struct ruler_item item = {.length = 100};
        assert_int_equal(eval_ruler_make(&eval_ruler_tasks[t], &item, &counter, &p, &err),
                         PITH_INVALID);
        assert_non_null(strstr(err.message, eval_ruler_tasks[t].name));
        assert_null(strstr(err.message, "-"));
        eval_prompt_free(&p);
    }
    assert_null(eval_ruler_find("qa_3"));
}
