/*
 * demo.c - `pith demo`: what Pith is for, shown with the model that comes with it. It shows a long
 * text with a fact in it, a question about the fact, the model's answer, and whether it is right.
 * Beside it stand the speed and the KV memory that the answer was found in. Then the same question
 * with a quarter of that memory, and with recall.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "picture.h"
#include "session.h"
#include "shipped.h"

#define MODEL_FILE "pith-nano.gguf"
#define TEXT_FILE "demo/prompt-2k.txt"
#define ANSWER_FILE "demo/answer-2k.txt"
#define MOST_ANSWER 96 /* tokens */
#define EXCERPT 360    /* bytes of the text's beginning that are shown */
#define AROUND 200     /* bytes shown on either side of the fact */
#define WRAP_MAX 100   /* columns */

struct demo_options {
    const char *text;
    const char *answer;
};

struct options {
    struct model_options model;
    struct demo_options demo;
    struct memory_options memory;
};

static const struct option demo_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, offsetof(struct demo_options, text),
     .absent = "the one that comes with Pith", .help = "a text that ends with a question"},
    {"--answer", NULL, "FILE", OPTION_TEXT, offsetof(struct demo_options, answer),
     .absent = "the one that comes with Pith", .help = "the right answer"},
    {0},
};

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model),
     .without = "the one that comes with Pith"},
    {"Text", demo_table, offsetof(struct options, demo)},
    {"KV memory", memory_option_table, offsetof(struct options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct options *o = options;
    memory_options_default(&o->memory);
}

/* ---- files ---- */

static struct cli_text read_text(const char *given, const char *name)
{
    char *path = given != NULL ? strdup(given) : cli_find_shipped(name);
    if (path == NULL)
        cli_fail("no memory for the name of a file");
    struct cli_text text = cli_read_file(path);
    cli_chomp(&text);
    free(path);
    return text;
}

/* ---- the text and what stands where in it ---- */

struct span {
    size_t begin; /* bytes */
    size_t end;
};

struct story {
    struct cli_text text;
    struct cli_text answer; /* trimmed */
    struct span fact;       /* empty when it is not in the text word for word */
    struct span question;   /* the last line that asks, to the end */
};

static void trim(struct cli_text *text)
{
    size_t begin = strspn(text->data, " \t\r\n");
    while (text->len > begin && strchr(" \t\r\n", text->data[text->len - 1]) != NULL)
        text->len--;
    text->len -= begin;
    memmove(text->data, text->data + begin, text->len);
    text->data[text->len] = '\0';
}

/* Where needle stands in text before end; false if nowhere. */
static bool find_before(const char *text, size_t end, const char *needle, size_t len,
                        struct span *out)
{
    for (size_t i = 0; i + len <= end; i++)
        if (memcmp(text + i, needle, len) == 0) {
            *out = (struct span){i, i + len};
            return true;
        }
    return false;
}

/* The question begins after the last "\nQuestion:", or with the last line. */
static struct span find_question(const struct cli_text *text)
{
    static const char mark[] = "\nQuestion:";
    struct span question = {0, text->len};
    for (size_t i = 0; i + 1 < text->len; i++) {
        if (strncmp(text->data + i, mark, strlen(mark)) == 0)
            question.begin = i + 1;
    }
    if (question.begin == 0)
        for (size_t i = 0; i + 1 < text->len; i++)
            if (text->data[i] == '\n')
                question.begin = i + 1;
    return question;
}

/* The sentence that a span lies in, from its beginning. */
static struct span whole_sentence(const struct cli_text *text, struct span s)
{
    while (s.begin > 0 && text->data[s.begin - 1] != '\n' &&
           !(s.begin > 1 && text->data[s.begin - 1] == ' ' && text->data[s.begin - 2] == '.'))
        s.begin--;
    return s;
}

/* The fact is the sentence with the longest beginning of the answer, in whole words, that the text
   has. That is all of the answer where one sentence has it, its first step where several must be
   put together. */
static struct span find_fact(const struct story *s)
{
    struct span fact = {0, 0};
    size_t len = s->answer.len;
    while (len > s->answer.len / 4 &&
           !find_before(s->text.data, s->question.begin, s->answer.data, len, &fact)) {
        while (len > 0 && s->answer.data[len - 1] != ' ')
            len--;
        if (len > 0)
            len--;
    }
    return fact.end > 0 ? whole_sentence(&s->text, fact) : fact;
}

static struct story read_story(const struct options *o)
{
    struct story s = {.text = read_text(o->demo.text, TEXT_FILE),
                      .answer = read_text(o->demo.answer, ANSWER_FILE)};
    trim(&s.answer);
    s.question = find_question(&s.text);
    s.fact = find_fact(&s);
    return s;
}

/* ---- showing it ---- */

struct page {
    bool colour;
    int width;
    int column;
};

static void style(const struct page *p, const char *code)
{
    if (p->colour)
        printf("\033[%sm", code);
}

static void show_word(struct page *p, const char *word, size_t len)
{
    if (p->column > 2 && p->column + 1 + (int)len > p->width) {
        printf("\n  ");
        p->column = 2;
    } else if (p->column > 2) {
        putchar(' ');
        p->column++;
    } else if (p->column == 0) {
        printf("  ");
        p->column = 2;
    }
    fwrite(word, 1, len, stdout);
    p->column += (int)len;
}

/* Prints text [begin, end) wrapped, in a style, the fact in another. */
static void show(struct page *p, const struct story *s, size_t begin, size_t end, const char *usual)
{
    for (size_t i = begin; i < end;) {
        if (s->text.data[i] == '\n') {
            putchar('\n');
            p->column = 0;
            i++;
            continue;
        }
        size_t len = strcspn(s->text.data + i, " \n");
        if (i + len > end)
            len = end - i;
        bool bright = i >= s->fact.begin && i < s->fact.end;
        if (len > 0) {
            style(p, bright ? "1;33" : usual);
            show_word(p, s->text.data + i, len);
        }
        i += len;
        if (i < end && s->text.data[i] == ' ')
            i++;
    }
    style(p, "0");
}

/* The next beginning of a word at or after at. */
static size_t word_after(const struct cli_text *text, size_t at)
{
    while (at > 0 && at < text->len && text->data[at - 1] != ' ' && text->data[at - 1] != '\n')
        at++;
    return at < text->len ? at : text->len;
}

/* Tokens of a beginning of the text. */
static int32_t count_tokens(const pith_model *model, const struct story *s, size_t len)
{
    struct cli_ids ids = session_tokenize(model, s->text.data, len, PITH_TOKENIZE_BOS);
    free(ids.data);
    return ids.n;
}

static void show_gap(struct page *p, const pith_model *model, const struct story *s, size_t begin,
                     size_t end)
{
    if (end <= begin)
        return;
    style(p, "2");
    printf("\n  [... %d tokens ...]\n",
           count_tokens(model, s, end) - count_tokens(model, s, begin));
    style(p, "0");
    p->column = 0;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}
static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The beginning, what surrounds the fact, and the end; how much is left out between them. */
static void show_story(struct page *p, const pith_model *model, const struct story *s)
{
    size_t end = s->question.begin, shown = word_after(&s->text, least(EXCERPT, end));
    show(p, s, 0, shown, "0");
    if (s->fact.end > s->fact.begin) {
        size_t from = s->fact.begin > AROUND ? word_after(&s->text, s->fact.begin - AROUND) : 0;
        size_t to = word_after(&s->text, least(s->fact.end + AROUND, end));
        from = most(from, shown);
        to = most(to, from);
        show_gap(p, model, s, shown, from);
        show(p, s, from, to, "0");
        shown = to;
    }
    size_t tail = word_after(&s->text, end > AROUND ? end - AROUND : 0);
    tail = most(tail, shown);
    show_gap(p, model, s, shown, tail);
    show(p, s, tail, end, "0");
    if (p->column > 0)
        putchar('\n');
    p->column = 0;
    putchar('\n');
    show(p, s, end, s->text.len, "1");
    fflush(stdout);
}

/* ---- the answer ---- */

struct demo_answer {
    const struct page *page; /* NULL: it is not shown */
    char text[4096];
    size_t len;
};

static bool collect(void *user, const char *text, size_t len)
{
    struct demo_answer *a = user;
    size_t room = sizeof(a->text) - 1 - a->len;
    memcpy(a->text + a->len, text, least(len, room));
    a->len += least(len, room);
    if (a->page == NULL)
        return !cli_interrupted();
    style(a->page, "1;36");
    bool ok = cli_write(text, len);
    style(a->page, "0");
    return ok && !cli_interrupted();
}

static bool is_right(const struct demo_answer *a, const struct story *s)
{
    struct cli_text given = {.data = cli_alloc(a->len + 1, 1), .len = a->len};
    memcpy(given.data, a->text, a->len);
    trim(&given);
    bool right = given.len == s->answer.len && memcmp(given.data, s->answer.data, given.len) == 0;
    free(given.data);
    return right;
}

static void show_result(const struct page *p, const struct session *s, const struct story *story,
                        const pith_generate_result *r, bool right)
{
    style(p, right ? "1;32" : "1;31");
    printf("\n\n  %s", right ? "Right." : "Wrong");
    style(p, "0");
    if (!right)
        printf(": the text says \"%s\"", story->answer.data);
    printf("\n\n  read %d tokens in %.3f s: %.0f tokens/s\n", r->n_prompt, r->prompt_s,
           r->n_prompt / r->prompt_s);
    printf("  wrote %d tokens in %.3f s: %.0f tokens/s\n", r->n_generated, r->generate_s,
           r->n_generated / r->generate_s);

    struct picture_mark marks[4] = {{0}};
    int32_t fact = count_tokens(s->model, story, story->fact.begin);
    int32_t question = count_tokens(s->model, story, story->question.begin);
    int n = 0;
    if (story->fact.end > story->fact.begin)
        marks[n++] =
            (struct picture_mark){fact, count_tokens(s->model, story, story->fact.end), "fact"};
    /* The text that recall put in front of the question counts with it. */
    int32_t end = r->n_prompt + r->n_cached + r->n_recalled;
    marks[n++] = (struct picture_mark){question, end, "question"};
    marks[n++] = (struct picture_mark){end, INT32_MAX, "answer"};
    picture_print(stdout, s, marks);
}

/* Asks; false after Ctrl-C. */
static bool ask(const struct session *s, const struct story *story, struct demo_answer *a,
                pith_generate_result *result)
{
    pith_error err;
    pith_generate_params params;
    struct cli_ids ids =
        session_tokenize(s->model, story->text.data, story->text.len, PITH_TOKENIZE_BOS);
    pith_generate_params_default(&params);
    params.n_predict = MOST_ANSWER;
    params.sample.temperature = 0.0f;
    params.message = story->text.data;
    params.message_len = story->text.len;
    pith_status status = pith_generate(s->seq, ids.data, ids.n, &params, collect, a, result, &err);
    free(ids.data);
    if (status == PITH_CANCELLED || cli_interrupted())
        return false;
    session_check(status, &err);
    return true;
}

static int answer(const struct page *p, const struct session *s, const struct story *story)
{
    pith_generate_result result;
    struct demo_answer a = {.page = p};
    if (!ask(s, story, &a, &result))
        return EXIT_INTERRUPTED;
    bool right = is_right(&a, story);
    show_result(p, s, story, &result, right);
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- the same question in less memory ---- */

#define LEAST_TOKENS 1024 /* of a text that a quarter is worth showing for */
#define BAR_LEN 32
#define SLACK 16 /* entries that a lane may hold above its budget */

/* All that grows with the conversation, and not pages alone: what recall keeps counts, too. Pages
   that were given back stay in the sum, so that it is the most that was taken. */
static int64_t memory_bytes(const struct session *s)
{
    pith_memory_stats memory;
    pith_engine_memory_stats(s->engine, &memory);
    return memory.total_bytes;
}

static void show_row(const struct page *p, const char *name, int64_t bytes, int64_t of,
                     const struct demo_answer *a, bool right)
{
    char size[32];
    struct cli_text text = {.data = cli_alloc(a->len + 1, 1), .len = a->len};
    memcpy(text.data, a->text, a->len);
    trim(&text);
    int n = of > 0 ? (int)((double)bytes / (double)of * BAR_LEN + 0.5) : 0;
    printf("  %-16s ", name);
    for (int i = 0; i < BAR_LEN; i++)
        fputs(i >= n ? " " : cli_is_utf8() ? "\u2588" : "#", stdout);
    printf(" %10s  ", cli_bytes(bytes, size));
    style(p, right ? "1;32" : "1;31");
    printf("%s", right ? "Right:" : "Wrong:");
    style(p, "0");
    printf(" %.*s\n", (int)strcspn(text.data, "\n"), text.data);
    fflush(stdout);
    free(text.data);
}

/* The question under a keep policy, on the model of another session. */
static bool show_kept(const struct page *p, const struct session *full, const struct options *o,
                      const struct story *story, const char *name, const char *keep,
                      const char *recall, bool *right)
{
    struct session s = {.model = full->model, .info = full->info};
    struct memory_options memory = o->memory;
    struct demo_answer a = {0};
    pith_generate_result result;
    memory.keep = keep;
    memory.recall = recall;
    session_start(&s, &o->model, &memory, 0);
    bool done = ask(&s, story, &a, &result);
    *right = done && is_right(&a, story);
    if (done)
        show_row(p, name, memory_bytes(&s), memory_bytes(full), &a, *right);
    s.model = NULL; /* the other's */
    session_free(&s);
    return done;
}

/* A quarter of the pages that the text takes: evicted is evicted, unless recall brings it back. */
static int compare(const struct page *p, const struct session *full, const struct options *o,
                   const struct story *story)
{
    const int32_t page_len = full->page_len, n = pith_seq_length(full->seq);
    struct demo_answer said = {.len = least(story->answer.len, sizeof(said.text))};
    char keep[64];
    bool forgets, recalls;
    int32_t budget = (n + page_len - 1) / page_len / 4 * page_len - 2 * SLACK;
    memcpy(said.text, story->answer.data, said.len);
    snprintf(keep, sizeof(keep), "streaming:budget=%d,slack=%d", budget, SLACK);
    printf(
        "\n  The same question in less memory. The policy evicts before it sees the question:\n\n");
    show_row(p, "full cache", memory_bytes(full), memory_bytes(full), &said, true);
    if (!show_kept(p, full, o, story, "a quarter", keep, NULL, &forgets) ||
        !show_kept(p, full, o, story, "with recall", keep, "text", &recalls))
        return EXIT_INTERRUPTED;
    printf("\n  a quarter:   --keep %s\n  with recall: the same and --recall text\n", keep);
    return recalls ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Whether the user wants a policy of their own, and not ours. */
static bool is_chosen(const struct memory_options *o)
{
    return o->keep != NULL || o->read != NULL || o->recall != NULL || o->share != NULL ||
           o->n_ctx > 0 || o->kv_bytes > 0;
}

static void show_title(const struct page *p, const struct session *s, const struct options *o,
                       const struct story *story)
{
    char bytes[32];
    pith_kv_stats kv;
    pith_engine_kv_stats(s->engine, &kv);
    style(p, "1");
    printf("Pith %s", pith_version());
    style(p, "0");
    printf(": %s, %.2f million parameters, loaded in %.3f s; kernels: %s\n",
           s->info.name[0] != '\0' ? s->info.name : "a model", 1e-6 * (double)s->info.n_param,
           s->load_s, pith_cpu_level());
    printf("A text of %d tokens; KV memory of %s, keys in %s, values in %s\n\n",
           count_tokens(s->model, story, story->text.len), cli_bytes(kv.reserved_bytes, bytes),
           o->memory.type_k, o->memory.type_v);
}

static int run(void *options)
{
    struct options *o = options;
    struct session s = {0};
    struct page p = {.colour = cli_is_terminal(STDOUT_FILENO) && getenv("NO_COLOR") == NULL};
    p.width = cli_columns() < WRAP_MAX ? cli_columns() - 2 : WRAP_MAX;
    (void)engine_params(&o->model, &o->memory);
    char *found =
        o->model.path == NULL && o->model.hf == NULL ? cli_find_shipped(MODEL_FILE) : NULL;
    if (found != NULL)
        o->model.path = found;
    struct story story = read_story(o);
    cli_interrupt_catch();
    session_load(&s, &o->model, false);
    session_start(&s, &o->model, &o->memory, 0);

    show_title(&p, &s, o, &story);
    show_story(&p, s.model, &story);
    int status = answer(&p, &s, &story);
    if (status == EXIT_SUCCESS && !is_chosen(&o->memory) && pith_seq_length(s.seq) >= LEAST_TOKENS)
        status = compare(&p, &s, o, &story);
    free(story.text.data);
    free(story.answer.data);
    session_free(&s);
    free(found);
    return status;
}

const struct command command_demo = {
    .name = "demo",
    .summary = "see a small model find a fact in a long text",
    .synopsis = "[-m MODEL -f TEXT --answer FILE]",
    .notes = "The exit status is 0 when the answer is right, with recall, too. Where options "
             "choose the\n"
             "KV memory or a policy, nothing is compared.\n"
             "\n"
             "  pith demo -ctk q8_0 -ctv q8_0 --page 32",
    .groups = groups,
    .options_size = sizeof(struct options),
    .defaults = defaults,
    .run = run,
};
