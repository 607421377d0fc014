/* The generators of `pith eval`: every prompt is read again here, by other means than those that
   wrote it, and must have the one answer that it is said to have. */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"

#include <math.h>
#include <string.h>

#include "eval/derivation.h"
#include "eval/needle.h"
#include "eval/questions.h"
#include "eval/recursion.h"
#include "eval/ruler.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"

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
                                pith_error *err)
{
    (void)user;
    (void)err;
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
static pith_status build_bent(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    struct bent *b = user;
    (void)err;
    b->n_build++;
    for (int32_t i = 0; i < size; i++)
        eval_text_add(&out->text, i < 100 ? "a " : "a b ");
    eval_text_add(&out->prefix, "is");
    return PITH_OK;
}

static void test_fit_is_exact(void **state)
{
    (void)state;
    for (int32_t want = 2; want < 400; want += 7) {
        struct bent b = {0};
        struct eval_prompt p = {0};
        pith_error err;
        assert_int_equal(
            eval_fit("bent", build_bent, &b, 0, 1 << 20, want, &counter, &p, &err), PITH_OK);
        /* 1 for the start, 1 for the prefix; beyond 102 a size takes two tokens. */
        assert_true(p.n_token == want || (want > 102 && p.n_token == want - 1));
        int32_t n = 0;
        assert_int_equal(count_tokens(NULL, p.text.data != NULL ? p.text.data : "", p.prefix.data,
                                      &n, &err),
                         PITH_OK);
        assert_int_equal(n, p.n_token);
        assert_true(b.n_build < 30);
        eval_prompt_free(&p);
    }
}

static void test_fit_bounds(void **state)
{
    (void)state;
    struct bent b = {0};
    struct eval_prompt p = {0};
    pith_error err;
    assert_int_equal(eval_fit("bent", build_bent, &b, 50, 60, 51, &counter, &p, &err),
                     PITH_INVALID);
    assert_non_null(strstr(err.message, "bent: 51 tokens are too few, its own text takes 52"));
    assert_int_equal(eval_fit("bent", build_bent, &b, 50, 60, 1000, &counter, &p, &err), PITH_OK);
    assert_int_equal(p.n_token, 62);
    eval_prompt_free(&p);
}

/* ---- haystacks ---- */

static void test_prose_wraps_and_keeps_space(void **state)
{
    (void)state;
    struct eval_prose prose = {"one  two\nthree ", 15};
    struct eval_text t = {0};
    eval_prose_take(&prose, 0, 5, false, &t);
    assert_string_equal(t.data, "one  two\nthree one  two");
    eval_text_clear(&t);
    eval_prose_take(&prose, 5, 4, true, &t);
    assert_string_equal(t.data, "two three one two");
    eval_text_clear(&t);
    struct eval_prose tight = {"a b", 3};
    eval_prose_take(&tight, 0, 4, false, &t);
    assert_string_equal(t.data, "a b a b");
    eval_text_free(&t);
    assert_true(eval_prose_is_empty(&(struct eval_prose){" \n", 2}));
}

static void test_places_are_sentence_ends(void **state)
{
    (void)state;
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
    pith_error err;
    if (eval_needle_make(p, &item, &counter, &t, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return t;
}

static void test_needle_paper_prompt(void **state)
{
    (void)state;
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

/* Checkers and prompts together: what is in the prompt passes only as an answer. */
static void test_needle_prompt_is_no_answer(void **state)
{
    (void)state;
    char *hay = make_prose(100);
    for (int style = EVAL_NEEDLE_PAPER; style <= EVAL_NEEDLE_PITH; style++) {
        struct eval_needle_params p = needle_params((enum eval_needle_style)style, hay);
        for (int d = 0; d <= 2; d++) {
            struct needle_text t = make_needle(&p, 300, d / 2.0, 0);
            struct eval_needle_key key = {t.word, t.number, t.question,
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

static void test_needle_decoys(void **state)
{
    (void)state;
    char *hay = make_prose(300);
    for (int style = EVAL_NEEDLE_PAPER; style <= EVAL_NEEDLE_PITH; style++) {
        struct eval_needle_params p = needle_params((enum eval_needle_style)style, hay);
        p.n_needle = 6;
        struct needle_text t = make_needle(&p, 600, 0.5, 1);
        const char *text = t.prompt.text.data;
        const char *head = style == EVAL_NEEDLE_PAPER ? "The secret code word of "
                                                      : "The password of ";
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

static void test_needle_items_differ_and_repeat(void **state)
{
    (void)state;
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

static void test_needle_refuses(void **state)
{
    (void)state;
    struct needle_item item = {.length = 10, .depth = 0.5};
    struct needle_text t = {0};
    pith_error err;
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
}

/* ---- RULER ---- */

static struct eval_prompt make_ruler(const char *task, struct ruler_item item)
{
    struct eval_prompt p = {0};
    pith_error err;
    const struct ruler_task *t = eval_ruler_find(task);
    assert_non_null(t);
    if (eval_ruler_make(t, &item, &counter, &p, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_true(p.n_token <= item.length - t->n_predict);
    return p;
}

static void test_ruler_fills_the_length(void **state)
{
    (void)state;
    char *text = make_prose(500);
    static const int32_t lengths[] = {1500, 4096, 6000};
    for (int t = 0; t < RULER_N_TASK; t++) {
        for (size_t l = 0; l < COUNT(lengths); l++) {
            struct ruler_item item = {.seed = 3, .length = lengths[l], .text = text,
                                      .text_len = strlen(text), .example = true};
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

static void test_ruler_niah(void **state)
{
    (void)state;
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

static void test_ruler_haystacks(void **state)
{
    (void)state;
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
static void test_ruler_frame_as_shipped(void **state)
{
    (void)state;
    static const char path[] = SHARED_DATA "/questions/ruler4096_niah_multikey_3.jsonl";
    SKIP_WITHOUT(path);
    FILE *f = fopen(path, "rb");
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

static void test_ruler_vt(void **state)
{
    (void)state;
    for (int32_t sample = 0; sample < 10; sample++) {
        struct ruler_item item = {
            .seed = 9, .sample = sample, .length = 1400, .example = sample % 2 == 0};
        struct eval_prompt p = make_ruler("vt", item);
        char names[9][8], value[16] = "";
        const char *last = strrchr(p.text.data, '\n');
        assert_int_equal(sscanf(last, "\nQuestion: Find all variables that are assigned the value"
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
        assert_true(ends_with(p.prefix.data, ", they are: "));
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

static void test_ruler_cwe(void **state)
{
    (void)state;
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

static void test_ruler_fwe(void **state)
{
    (void)state;
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

static void test_ruler_too_short(void **state)
{
    (void)state;
    struct eval_prompt p = {0};
    pith_error err;
    for (int t = 0; t < RULER_N_TASK; t++) {
        struct ruler_item item = {.length = 100};
        assert_int_equal(eval_ruler_make(&eval_ruler_tasks[t], &item, &counter, &p, &err),
                         PITH_INVALID);
        assert_non_null(strstr(err.message, eval_ruler_tasks[t].name));
        eval_prompt_free(&p);
    }
    assert_null(eval_ruler_find("qa_1"));
}

/* ---- recursion ---- */

static void test_records_as_shipped(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int32_t n;
    } files[] = {
        {SHARED_DATA "/questions/dfs/dfs_state_query_100.json", 100},
        {SHARED_DATA "/questions/dfs/dfs_state_query_detail.json", 80},
        {SHARED_DATA "/questions/dfs/dfs_state_query_small.json", 30},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        SKIP_WITHOUT(files[i].path);
        char *text = NULL;
        size_t len = 0;
        pith_error err;
        struct recursion_file f;
        assert_int_equal(eval_read_file(files[i].path, &text, &len, &err), PITH_OK);
        assert_int_equal(eval_record_file_parse(text, len, &f, &err), PITH_OK);
        assert_int_equal(f.n, files[i].n);
        assert_int_equal(f.n_wrong, 0);
        eval_record_file_free(&f);
        free(text);
    }
}

static const char record_text[] =
    "[{\"id\":0,\"graph\":{\"nodes\":[3,0,1,2],\"edges\":[[0,2],[0,1],[1,3]]},\"start_node\":0,"
    "\"steps\":4,\"answer\":{\"current_node\":0,\"stack\":[0],\"visited_nodes\":[0,1,3]}},"
    "{\"graph\":{\"nodes\":[7,9],\"edges\":[[7,9]]},\"start_node\":7,\"steps\":3,"
    "\"answer\":{\"current_node\":null,\"stack\":[],\"visited_nodes\":[7,9]}},"
    "{\"graph\":{\"nodes\":[7,9],\"edges\":[[7,9]]},\"start_node\":7,\"steps\":1,"
    "\"answer\":{\"current_node\":7,\"stack\":[7],\"visited_nodes\":[7]}}]";

static void score(const char *answer, const struct recursion_record *r, int parsed, int node,
                  int stack, int visited)
{
    struct recursion_score s;
    eval_paper_score(answer, r, &s);
    if (s.parsed != parsed || s.node != node || s.stack != stack || s.visited != visited)
        fail_msg("\"%s\": parsed %d, node %d, stack %d, visited %d", answer, s.parsed, s.node,
                 s.stack, s.visited);
}

static void test_record_answers(void **state)
{
    (void)state;
    struct recursion_file f;
    pith_error err;
    assert_int_equal(eval_record_file_parse(record_text, strlen(record_text), &f, &err), PITH_OK);
    assert_int_equal(f.n, 3);
    assert_int_equal(f.n_wrong, 1); /* the third is wrong, and found out */
    const struct recursion_record *r = &f.record[0];
    score("{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1, 3]}", r, 1, 1, 1, 1);
    score("{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [3, 1, 0]}", r, 1, 1, 1, 1);
    score("{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1]}", r, 1, 1, 1, 0);
    score("{\"current_node\": 0, \"stack\": [0, 1], \"visited_nodes\": [0, 1, 3, 2]}", r, 1, 1, 0,
          0);
    score("{\"current_node\": \"0\", \"stack\": [\"0\"], \"visited_nodes\": []}", r, 1, 0, 0, 0);
    score("{\"current_node\": null, \"stack\": 0}", r, 1, 0, 0, 0);
    score("Analysis: {a} then\nAnswer: {\"current_node\": 0, \"stack\": [0],\n"
          "\"visited_nodes\": [0, 1, 3]} as said",
          r, 1, 1, 1, 1);
    score("```json\n{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1, 3]}\n```\n"
          "not {\"current_node\": 2, \"stack\": [2], \"visited_nodes\": [2]}",
          r, 1, 1, 1, 1);
    score("```\nx\n```\n```\n{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0]}\n```", r,
          1, 1, 1, 0);
    score("```json\n{\"current_node\": 0, \"stack\": [0]", r, 0, 0, 0, 0);
    score("<think>{\"current_node\": 0, \"stack\": [0], \"visited_nodes\": [0, 1, 3]}", r, 0, 0, 0,
          0);
    score("{\"state\": {\"x\": 1}, \"current_node\": 0, \"stack\": [0]} }", r, 0, 0, 0, 0);
    score("so {\"why\": {\"x\": 1}, \"current_node\": 0, \"stack\": [0], \"visited_nodes\":[1]}.",
          r, 1, 1, 1, 0);
    score("no answer", r, 0, 0, 0, 0);
    score("{\"current_node\": null, \"stack\": [], \"visited_nodes\": [7, 9]}", &f.record[1], 1, 1,
          1, 1);
    struct recursion_score s;
    eval_paper_score("{\"current_node\": 0, \"stack\": [1], \"visited_nodes\": [0, 1, 2, 8]}", r,
                     &s);
    assert_true(fabs(s.f1 - 4.0 / 7.0) < 1e-12);
    assert_true(s.depth && !s.stack);
    eval_record_file_free(&f);
}

static void test_bad_records(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "[{}]",
        "[{\"graph\":{\"nodes\":[0,0],\"edges\":[]}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,2]]}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0]]}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":5,\"steps\":1}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":0,\"steps\":9,"
        "\"answer\":{}}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":0,\"steps\":-1}]",
        "[{\"graph\":{\"nodes\":[0,1],\"edges\":[[0,1]]},\"start_node\":0,\"steps\":1}]",
        "[{\"graph\":{\"nodes\":[4294967296],\"edges\":[]},\"start_node\":0,\"steps\":1}]",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct recursion_file f;
        pith_error err;
        assert_int_equal(eval_record_file_parse(texts[i], strlen(texts[i]), &f, &err),
                         PITH_FORMAT);
        eval_record_file_free(&f);
    }
}

static void test_drawn_records(void **state)
{
    (void)state;
    for (int32_t steps = 1; steps <= RECURSION_MAX_STEP; steps++) {
        for (int32_t sample = 0; sample < 6; sample++) {
            struct recursion_record r = {0};
            pith_error err;
            assert_int_equal(eval_paper_draw(1, steps, sample, &r, &err), PITH_OK);
            assert_in_range(r.graph.n_node, RECURSION_MIN_NODE, RECURSION_MAX_NODE);
            assert_true(r.graph.n_edge >= r.graph.n_node - 1);
            assert_true(r.n_stack > 0 && r.stack[0] == 0);
            /* Steps forward and steps back: one node more on the path, one less. */
            int32_t forward = r.n_visited - 1, back = steps - forward;
            assert_int_equal(r.n_stack, 1 + forward - back);
            struct eval_prompt p = {0};
            eval_paper_prompt(&r, &p);
            assert_int_equal(eval_prompt_check(&p, &err), PITH_OK);
            char want[64];
            snprintf(want, sizeof(want), "after exactly %d steps", (int)steps);
            assert_non_null(strstr(p.text.data, want));
            eval_prompt_free(&p);
            eval_record_free(&r);
        }
    }
    struct recursion_record r = {0};
    pith_error err;
    assert_int_equal(eval_paper_draw(1, RECURSION_MAX_STEP + 1, 0, &r, &err), PITH_INVALID);
    eval_record_free(&r);
}

/* ---- traces ---- */

#define MAX_NAME 16

struct told {
    char name[MAX_NAME];
    char next[4][MAX_NAME];
    int n_next;
};

static int find_told(const struct told *g, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(g[i].name, name) == 0)
            return i;
    }
    fail_msg("%s is no node", name);
    return -1;
}

/* Reads "- Maria: Anton, Clara." lines. */
static int read_graph(const char *text, struct told *g, const char **rest)
{
    int n = 0;
    assert_int_equal(strncmp(text, "Graph:\n", 7), 0);
    for (text += 7; strncmp(text, "- ", 2) == 0; n++) {
        int used = 0;
        assert_int_equal(sscanf(text, "- %15[A-Za-z]:%n", g[n].name, &used), 1);
        text += used;
        for (g[n].n_next = 0; *text != '\n'; g[n].n_next++) {
            assert_true(g[n].n_next < 4);
            assert_int_equal(sscanf(text, " %15[A-Za-z]%n", g[n].next[g[n].n_next], &used), 1);
            text += used;
            assert_true(*text == ',' || (*text == '.' && text[1] == '\n'));
            text++;
        }
        text++;
    }
    *rest = text;
    return n;
}

/* Writes the trace from what the prompt says, with names alone. */
static void retell(const struct told *g, int n, const char *start, int steps, struct eval_text *out)
{
    int stack[64], depth = 1, order[64], n_seen = 1;
    stack[0] = order[0] = find_told(g, n, start);
    eval_text_printf(out, "1 %s.\n", start);
    for (int step = 1; step <= steps; step++) {
        const struct told *here = &g[stack[depth - 1]];
        eval_text_printf(out, "Step %d: %s:", step, here->name);
        int found = -1;
        for (int i = 0; i < here->n_next && found < 0; i++) {
            int next = find_told(g, n, here->next[i]);
            bool seen = false;
            for (int k = 0; k < n_seen; k++)
                seen = seen || order[k] == next;
            eval_text_printf(out, " %s %s", here->next[i], seen ? "old," : "new.\n");
            found = seen ? -1 : next;
        }
        if (found >= 0) {
            stack[depth++] = order[n_seen++] = found;
            eval_text_printf(out, "%d %s under %s.\n", n_seen, g[found].name, here->name);
        } else {
            depth--;
            assert_true(depth > 0); /* never more steps than the search has */
            eval_text_printf(out, " end. Back to %s.\n", g[stack[depth - 1]].name);
        }
    }
    eval_text_printf(out, "State: at %s. Stack: %s", g[stack[depth - 1]].name,
                     g[stack[depth - 1]].name);
    for (int i = depth - 2; i >= 0; i--)
        eval_text_printf(out, " under %s", g[stack[i]].name);
    eval_text_printf(out, ". Visited: 1 %s", start);
    for (int i = 1; i < n_seen; i++)
        eval_text_printf(out, ", %d %s", i + 1, g[order[i]].name);
    eval_text_add(out, ".");
}

static void test_traces(void **state)
{
    (void)state;
    for (int32_t steps = 6; steps <= TRACE_MAX_STEP; steps += 2) {
        for (int32_t sample = 0; sample < 4; sample++) {
            struct recursion_record r = {0};
            struct eval_prompt p = {0};
            pith_error err;
            assert_int_equal(eval_trace_make(4, steps, sample, &r, &p, &err), PITH_OK);
            struct told g[TRACE_MAX_NODE];
            const char *rest;
            char start[MAX_NAME];
            int asked = 0, used = 0;
            int n = read_graph(p.text.data, g, &rest);
            assert_int_equal(n, r.graph.n_node);
            assert_in_range(n, TRACE_MIN_NODE, TRACE_MAX_NODE);
            assert_int_equal(
                sscanf(rest, "Search of %d steps from %15[A-Za-z].%n", &asked, start, &used), 2);
            assert_string_equal(rest + used, "\n");
            assert_int_equal(asked, steps);
            struct eval_text want = {0};
            retell(g, n, start, steps, &want);
            assert_string_equal(p.refs.at[0], want.data);
            struct recursion_score s;
            eval_trace_score(want.data, p.refs.at[0], &s);
            assert_true(s.parsed && s.node && s.stack && s.depth && s.visited);
            assert_true(s.f1 == 1.0 && s.lines == 1.0);
            eval_text_free(&want);
            eval_prompt_free(&p);
            eval_record_free(&r);
        }
    }
}

static void test_trace_scores(void **state)
{
    (void)state;
    static const char want[] = "1 Maria.\n"
                               "Step 1: Maria: Anton new.\n"
                               "2 Anton under Maria.\n"
                               "Step 2: Anton: Maria old, Hugo new.\n"
                               "3 Hugo under Anton.\n"
                               "State: at Hugo. Stack: Hugo under Anton under Maria. Visited: 1"
                               " Maria, 2 Anton, 3 Hugo.";
    struct recursion_score s;
    eval_trace_score("State: at Hugo. Stack: Hugo under Anton under Maria. Visited: 1 Maria, 2"
                     " Hugo.\n",
                     want, &s);
    assert_true(s.stack && s.node && !s.visited && s.lines == 0.0);
    assert_true(fabs(s.f1 - 0.8) < 1e-12);
    eval_trace_score("Step 2: Anton: Maria old, Hugo new. \nStep 1: Maria: Hugo new.\nState: at"
                     " Anton. Stack: Anton under Hugo under Maria. Visited:",
                     want, &s);
    assert_true(!s.stack && s.depth && !s.node && s.lines == 0.5 && s.f1 == 0.0);
    /* Cut within the stack: what is there is right so far, but it is no stack. */
    eval_trace_score("State: at Hugo. Stack: Hugo under Anton under Maria", want, &s);
    assert_false(s.stack || s.parsed);
    eval_trace_score("<think>State: at Hugo. Stack: Hugo under Anton under Maria.", want, &s);
    assert_false(s.stack || s.parsed);
    eval_trace_score("", want, &s);
    assert_false(s.stack || s.parsed || s.visited);
}

/* ---- derivation ---- */

static void test_derivations(void **state)
{
    (void)state;
    bool recurs = false;
    for (int32_t n_part = DERIVATION_MIN_PART; n_part <= DERIVATION_MAX_PART; n_part += 8) {
        struct eval_prompt p = {0};
        pith_error err;
        assert_int_equal(eval_derivation_make(6, n_part, 0, &p, &err), PITH_OK);
        const char *text = p.text.data + strlen("Sums modulo 20:");
        struct eval_text want = {0};
        int total = 0, pairs[DERIVATION_MAX_PART + 1][2];
        for (int i = 1; i <= n_part; i++) {
            int number, a, b, used;
            assert_int_equal(sscanf(text, " #%d %d&%d%n", &number, &a, &b, &used), 3);
            assert_true(number == i && a >= 0 && a < 20 && b >= 0 && b < 20);
            text += used;
            pairs[i][0] = a;
            pairs[i][1] = b;
            for (int k = 1; k < i; k++)
                recurs = recurs || (pairs[k][0] == a && pairs[k][1] == b);
            int was = total;
            total = (was + 2 * a + 2 * b - b + b) % 20; /* a+b, +b, +a is 2a + 2b */
            eval_text_printf(&want,
                             "Part #%d %d&%d: %d+%d=%d, %d+%d=%d, %d+%d=%d. Total %d+%d=%d.\n\n", i,
                             a, b, a, b, (a + b) % 20, (a + b) % 20, b, (a + 2 * b) % 20,
                             (a + 2 * b) % 20, a, (2 * a + 2 * b) % 20, was, (2 * a + 2 * b) % 20,
                             total);
        }
        assert_string_equal(text, ".\n\n");
        eval_text_printf(&want, "Answer: %d.", total);
        assert_string_equal(p.refs.at[0], want.data);
        struct derivation_score s;
        eval_derivation_score(want.data, p.refs.at[0], n_part, &s);
        assert_true(s.answer && s.whole && s.parts == 1.0);
        eval_text_free(&want);
        eval_prompt_free(&p);
    }
    assert_true(recurs);
    struct eval_prompt p = {0};
    pith_error err;
    assert_int_equal(eval_derivation_make(6, 3, 0, &p, &err), PITH_INVALID);
    eval_prompt_free(&p);
}

static void test_derivation_scores(void **state)
{
    (void)state;
    static const char want[] = "Part #1 7&5: 7+5=12, 12+5=17, 17+7=4. Total 0+4=4.\n\n"
                               "Part #2 3&8: 3+8=11, 11+8=19, 19+3=2. Total 4+2=6.\n\n"
                               "Answer: 6.";
    struct derivation_score s;
    eval_derivation_score("Part #1 7&5: 7+5=12, 12+5=17, 17+7=4. Total 0+4=4.\n\n"
                          "Part #2 3&8: 3+8=11, 11+8=19, 19+3=3. Total 4+3=7.\n\nAnswer: 7.",
                          want, 2, &s);
    assert_true(!s.answer && !s.whole && s.parts == 0.5);
    eval_derivation_score("Answer: 6.\n", want, 2, &s);
    assert_true(s.answer && !s.whole && s.parts == 0.0);
    eval_derivation_score("Answer: 6", want, 2, &s);
    assert_false(s.answer);
    eval_derivation_score("Answer: 16.", want, 2, &s);
    assert_false(s.answer);
}

/* ---- questions ---- */

static void test_question_lines(void **state)
{
    (void)state;
    static const char text[] =
        "{\"problem\": \"p\", \"answer\": \"\\\\frac{1}{2}\", \"unique_id\": \"t/1\"}\n"
        "\n"
        "{\"question\": \"q\", \"answer\": \"2 eggs and #### no\\n#### 1,450\"}\r\n"
        "{\"id\": 0, \"problem\": \"a\", \"question\": \"b\", \"answer\": 27.0}\n"
        "{\"problem\": \"c\", \"answer\": 70, \"id\": \"x\"}";
    struct question_file f;
    pith_error err;
    assert_int_equal(eval_questions_parse(text, strlen(text), &f, &err), PITH_OK);
    assert_int_equal(f.n, 4);
    assert_string_equal(f.question[0].answer, "\\frac{1}{2}");
    assert_string_equal(f.question[0].name, "t/1");
    assert_string_equal(f.question[1].problem, "q");
    assert_string_equal(f.question[1].answer, "1,450");
    assert_string_equal(f.question[1].name, "line 3");
    assert_string_equal(f.question[2].problem, "a");
    assert_string_equal(f.question[2].answer, "27");
    assert_string_equal(f.question[3].answer, "70");
    eval_questions_free(&f);
    static const char *const bad[] = {"", "\n \n", "[]", "{\"problem\": \"p\"}",
                                      "{\"answer\": \"p\"}", "{\"problem\": \"p\", \"answer\": []}",
                                      "{\"problem\""};
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(eval_questions_parse(bad[i], strlen(bad[i]), &f, &err), PITH_FORMAT);
        eval_questions_free(&f);
    }
}

/* Every reference that is shipped is found again in a solution, boxed, and equals itself and no
   neighbour that reads otherwise. */
static void test_questions_as_shipped(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int32_t n;
    } files[] = {
        {SHARED_DATA "/questions/lessismore_math500.jsonl", 500},
        {SHARED_DATA "/questions/lessismore_aime.jsonl", 30},
        {SHARED_DATA "/questions/lessismore_aime2025.jsonl", 30},
        {SHARED_DATA "/questions/qwenmath_amc23.jsonl", 40},
        {SHARED_DATA "/questions/gsm8k_test.jsonl", 1319},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        SKIP_WITHOUT(files[i].path);
        char *text = NULL;
        size_t len = 0;
        pith_error err;
        struct question_file f;
        assert_int_equal(eval_read_file(files[i].path, &text, &len, &err), PITH_OK);
        assert_int_equal(eval_questions_parse(text, len, &f, &err), PITH_OK);
        assert_int_equal(f.n, files[i].n);
        for (int32_t k = 0; k < f.n; k++) {
            const struct question *q = &f.question[k];
            struct eval_text solution = {0};
            char *said = NULL;
            bool same = false;
            eval_text_printf(&solution, "%s\nIt is not \\boxed{0}, so $\\boxed{%s}$.", q->problem,
                             q->answer);
            assert_int_equal(
                eval_final_answer(solution.data, q->problem, false, &said, &err), PITH_OK);
            assert_string_equal(said, q->answer);
            assert_int_equal(eval_answers_equal(said, q->answer, &same, &err), PITH_OK);
            if (!same)
                fail_msg("%s: \"%s\" is not itself", q->name, said);
            free(said);
            eval_text_free(&solution);
        }
        eval_questions_free(&f);
        free(text);
    }
}

/* ---- words ---- */

static void test_words(void **state)
{
    (void)state;
    static const struct eval_word_list *const lists[] = {&eval_names, &eval_adjectives,
                                                         &eval_things, &eval_places, &eval_roles};
    struct eval_strings all = {0};
    for (size_t i = 0; i < COUNT(lists); i++) {
        for (int32_t k = 0; k < lists[i]->n; k++) {
            assert_false(eval_strings_has(&all, lists[i]->word[k]));
            eval_strings_add(&all, lists[i]->word[k]);
        }
    }
    assert_int_equal(all.n, 183);
    eval_strings_free(&all);
    struct eval_rng rng = eval_rng_make(1, 2, 3);
    for (int i = 0; i < 2000; i++) {
        char word[EVAL_INVENTED_SIZE];
        eval_invent(&rng, word);
        assert_in_range(strlen(word), 2, 15);
    }
}

/* ---- with a model ---- */

static pith_model *load_model(void)
{
    pith_model *model = NULL;
    pith_error err;
    if (pith_model_load(MODEL, NULL, &model, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return model;
}

static struct eval_setup setup_of(const pith_model *model)
{
    struct eval_setup s = {.model = model, .seed = 11, .keep_text = true};
    pith_engine_params_default(&s.engine);
    return s;
}

static double summary(const json_t *result, const char *key)
{
    const json_t *value = json_object_get(json_object_get(result, "summary"), key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* The model answers its own kind of question wherever the fact stands, and the prompt has the
   tokens that were asked for. */
static void test_needle_with_model(void **state)
{
    (void)state;
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    static const int32_t lengths[] = {256, 1024};
    static const double depths[] = {0.0, 0.5, 1.0};
    struct eval_needle_params p = needle_params(EVAL_NEEDLE_PITH, NULL);
    SKIP_WITHOUT(PITH_SOURCE_DIR "/models/demo/prompt-2k.txt");
    char *hay = NULL;
    pith_error err;
    assert_int_equal(eval_read_file(PITH_SOURCE_DIR "/models/demo/prompt-2k.txt", &hay,
                                    &p.haystack_len, &err),
                     PITH_OK);
    p.haystack = hay;
    p.haystack_len = (size_t)(strstr(hay, "\nQuestion:") - hay); /* facts about others stay */
    p.lengths = lengths;
    p.n_length = 2;
    p.depths = depths;
    p.n_depth = 3;
    p.n_repeat = 4;
    p.n_predict = 24;
    json_t *result = NULL;
    if (eval_needle(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    const json_t *rows = json_object_get(result, "rows");
    assert_int_equal(json_array_size(rows), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *row = json_array_get(rows, i);
        double n = json_number_value(json_object_get(row, "tokens"));
        double length = json_number_value(json_object_get(row, "length"));
        assert_true(n <= length && n > length - 8);
        assert_int_equal(json_array_size(json_object_get(row, "texts")), 4);
    }
    assert_int_equal(summary(result, "n"), 24);
    assert_true(summary(result, "score") >= 0.9);
    json_decref(result);
    free(hay);
    pith_model_free(model);
}

static void test_ruler_with_model(void **state)
{
    (void)state;
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    static const char *const tasks[] = {"all"};
    static const int32_t lengths[] = {1024};
    struct eval_ruler_params p = {
        .tasks = tasks, .n_task = 1, .lengths = lengths, .n_length = 1, .n_sample = 1};
    json_t *result = NULL;
    pith_error err;
    if (eval_ruler(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(json_array_size(json_object_get(result, "rows")), RULER_N_TASK);
    assert_int_equal(summary(result, "n"), RULER_N_TASK);
    json_decref(result);
    static const char *const none[] = {"niah_single_9"};
    p.tasks = none;
    assert_int_equal(eval_ruler(&setup, &p, &result, &err), PITH_INVALID);
    pith_model_free(model);
}

static void test_recursion_with_model(void **state)
{
    (void)state;
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    struct eval_recursion_params p = {
        .min_steps = 6, .max_steps = 8, .step_stride = 2, .n_sample = 2, .trace = true};
    json_t *result = NULL;
    pith_error err;
    if (eval_recursion(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(summary(result, "n"), 4);
    json_decref(result);
    p.trace = false;
    p.n_predict = 16;
    if (eval_recursion(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(json_array_size(json_object_get(result, "rows")), 2);
    json_decref(result);
    p.max_steps = 99;
    assert_int_equal(eval_recursion(&setup, &p, &result, &err), PITH_INVALID);

    static const int32_t parts[] = {4, 6};
    struct eval_derivation_params d = {.parts = parts, .n_part = 2, .n_sample = 1};
    if (eval_derivation(&setup, &d, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(summary(result, "n"), 2);
    json_decref(result);
    pith_model_free(model);
}

static void test_questions_with_model(void **state)
{
    (void)state;
    pith_model *model = load_model();
    struct eval_setup setup = setup_of(model);
    char path[] = "/tmp/pith-questions-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    fputs("{\"problem\": \"What is 1 + 1?\", \"answer\": 2}\n{\"question\": \"Count to three.\","
          " \"answer\": \"x\\n#### 3\"}\n",
          f);
    fclose(f);
    struct eval_questions_params p = {.path = path, .n_draw = 3, .n_predict = 12};
    pith_sample_params_default(&p.sample);
    json_t *result = NULL, *again = NULL;
    pith_error err;
    if (eval_questions(&setup, &p, &result, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_int_equal(eval_questions(&setup, &p, &again, &err), PITH_OK);
    assert_int_equal(summary(result, "n"), 6);
    const json_t *rows = json_object_get(result, "rows");
    assert_true(json_equal(rows, json_object_get(again, "rows"))); /* seeded */
    const json_t *texts = json_object_get(json_array_get(rows, 0), "texts");
    assert_int_equal(json_array_size(texts), 3);
    assert_false(json_equal(json_array_get(texts, 0), json_array_get(texts, 1))); /* sampled */
    json_decref(result);
    json_decref(again);
    unlink(path);
    pith_model_free(model);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit_is_exact),
        cmocka_unit_test(test_fit_bounds),
        cmocka_unit_test(test_prose_wraps_and_keeps_space),
        cmocka_unit_test(test_places_are_sentence_ends),
        cmocka_unit_test(test_needle_paper_prompt),
        cmocka_unit_test(test_needle_prompt_is_no_answer),
        cmocka_unit_test(test_needle_decoys),
        cmocka_unit_test(test_needle_items_differ_and_repeat),
        cmocka_unit_test(test_needle_refuses),
        cmocka_unit_test(test_ruler_fills_the_length),
        cmocka_unit_test(test_ruler_niah),
        cmocka_unit_test(test_ruler_haystacks),
        cmocka_unit_test(test_ruler_frame_as_shipped),
        cmocka_unit_test(test_ruler_vt),
        cmocka_unit_test(test_ruler_cwe),
        cmocka_unit_test(test_ruler_fwe),
        cmocka_unit_test(test_ruler_too_short),
        cmocka_unit_test(test_records_as_shipped),
        cmocka_unit_test(test_record_answers),
        cmocka_unit_test(test_bad_records),
        cmocka_unit_test(test_drawn_records),
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_trace_scores),
        cmocka_unit_test(test_derivations),
        cmocka_unit_test(test_derivation_scores),
        cmocka_unit_test(test_question_lines),
        cmocka_unit_test(test_questions_as_shipped),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_needle_with_model),
        cmocka_unit_test(test_ruler_with_model),
        cmocka_unit_test(test_recursion_with_model),
        cmocka_unit_test(test_questions_with_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
