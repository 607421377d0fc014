/*
 * chat.c - `pith chat`: a conversation. The messages are the truth: before each answer they are
 * rendered anew. The sequence keeps the beginning that it already holds, so a turn costs its own
 * tokens only.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "budget.h"
#include "command.h"
#include "draft.h"
#include "eval.h"
#include "line.h"
#include "outputs.h"
#include "picture.h"
#include "recall.h"
#include "session.h"
#include "pith/policy.h"

struct talk_options {
    int32_t n_predict;
    const char *history;
    bool stats;
};

struct options {
    struct model_options model;
    struct chat_options chat;
    struct talk_options talk;
    struct sample_options sample;
    struct grammar_options grammar;
    struct draft_options draft;
    struct memory_options memory;
};

#define AT(member) .offset = offsetof(struct talk_options, member)
static const struct option talk_option_table[] = {
    {"--predict", "-n", "N", OPTION_INT, AT(n_predict), .min = -1, .max = INT32_MAX,
     .absent = "until the model ends it", .help = "most tokens of an answer", .also = "--n-predict",
     .env = "LLAMA_ARG_N_PREDICT"},
    {"--history", NULL, "FILE", OPTION_TEXT, AT(history), .absent = "~/.pith_history",
     .help = "where the lines that you type are kept; empty: nowhere"},
    {"--stats", NULL, NULL, OPTION_FLAG, AT(stats), .help = "print speeds after every answer"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model)},
    {"Conversation", talk_option_table, offsetof(struct options, talk)},
    {"Chat template", chat_option_table, offsetof(struct options, chat)},
    {"Sampling", sample_option_table, offsetof(struct options, sample)},
    {"Grammar", grammar_option_table, offsetof(struct options, grammar)},
    {"Drafts", draft_option_table, offsetof(struct options, draft)},
    {"KV memory", memory_option_table, offsetof(struct options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct options *o = options;
    o->talk.n_predict = -1;
    sample_options_default(&o->sample);
    draft_options_default(&o->draft, "auto");
    memory_options_default(&o->memory);
}

/* ---- the conversation ---- */

struct chat {
    const struct options *options;
    struct session s;
    struct line_reader *reader;
    pith_sample_params sample;
    pith_logit_bias *bias;  /* owned, referred to by sample */
    pith_message *messages; /* [n_message], contents and roles owned */
    int32_t n_message;
    int32_t cap;
    struct cli_text answer; /* the one being generated */
    size_t answer_cap;
    char *recalled;                 /* for the last message; NULL: nothing */
    const pith_draft_params *draft; /* NULL: nothing is drafted */
};

static void add_message(struct chat *c, const char *role, const char *content, size_t len)
{
    if (c->n_message == c->cap) {
        c->cap = 2 * c->cap + 8;
        pith_message *grown = realloc(c->messages, (size_t)c->cap * sizeof(*grown));
        if (grown == NULL)
            cli_fail("no memory for %d messages", c->cap);
        c->messages = grown;
    }
    char *own_role = strdup(role), *own = strndup(content, len);
    if (own_role == NULL || own == NULL)
        cli_fail("no memory for a message of %zu bytes", len);
    c->messages[c->n_message++] = (pith_message){own_role, own};
}

static void drop_messages(struct chat *c, int32_t n_left)
{
    while (c->n_message > n_left) {
        c->n_message--;
        free((char *)c->messages[c->n_message].role);
        free((char *)c->messages[c->n_message].content);
    }
}

static void start_over(struct chat *c)
{
    drop_messages(c, 0);
    if (c->options->chat.system != NULL)
        add_message(c, "system", c->options->chat.system, strlen(c->options->chat.system));
}

static bool collect(void *user, const char *text, size_t len)
{
    struct chat *c = user;
    if (c->answer.len + len + 1 > c->answer_cap) {
        c->answer_cap = 2 * (c->answer.len + len + 1);
        char *grown = realloc(c->answer.data, c->answer_cap);
        if (grown == NULL)
            cli_fail("no memory for an answer of %zu bytes", c->answer_cap);
        c->answer.data = grown;
    }
    memcpy(c->answer.data + c->answer.len, text, len);
    c->answer.len += len;
    return cli_write(text, len) && !cli_interrupted();
}

/* Ctrl-C came while the prompt was read: what of it is there. */
static void note_kept(const struct chat *c, const struct cli_ids *ids)
{
    const int32_t *there = pith_seq_tokens(c->s.seq);
    int32_t n = 0, most = pith_seq_length(c->s.seq) < ids->n ? pith_seq_length(c->s.seq) : ids->n;
    while (n < most && there[n] == ids->data[n])
        n++;
    cli_note("stopped: %d of %d tokens are read, and the same message goes on from there", n,
             ids->n);
}

/* Generates the answer to the messages; false leaves the conversation without it. */
static bool answer(struct chat *c)
{
    pith_error err;
    pith_generate_params params;
    pith_generate_result result;
    pith_prompt *prompt = session_prompt(c->s.model, &c->options->chat, c->messages, c->n_message);
    struct cli_ids ids = session_prompt_ids(c->s.model, prompt, true);
    pith_generate_params_default(&params);
    params.n_predict = c->options->talk.n_predict;
    params.sample = c->sample;
    params.keep_read = true;
    params.recalled = c->recalled;
    params.draft = c->draft;

    c->answer.len = 0;
    pith_status status =
        pith_generate(c->s.seq, ids.data, ids.n, &params, collect, c, &result, &err);
    cli_progress_hide();
    if (status == PITH_OK)
        session_note_context(&c->s, pith_seq_length(c->s.seq));
    if (status == PITH_CANCELLED)
        note_kept(c, &ids);
    free(ids.data);
    pith_prompt_free(prompt);
    if (status == PITH_CANCELLED)
        return false;
    if (status == PITH_KV_FULL || status == PITH_CONTEXT) {
        cli_note("%s; /reset starts over, -c or --kv-memory give more", err.message);
        return false;
    }
    cli_check(status, &err);
    cli_write("\n", 1);
    if (result.reason == PITH_STOP_FULL)
        session_explain_full(&c->s);
    recall_doubt(&c->s);
    if (c->options->talk.stats)
        session_report(&c->s, &result, false);
    add_message(c, "assistant", c->answer.len > 0 ? c->answer.data : "", c->answer.len);
    return true;
}

/* The user's message, with what is recalled for it in front of its question. */
static void add_turn(struct chat *c, const char *text, size_t len)
{
    pith_recall_free(c->recalled);
    c->recalled = recall_find(&c->s, text, len);
    if (c->recalled != NULL) {
        struct cli_text both = recall_join(text, len, c->recalled);
        add_message(c, "user", both.data, both.len);
        free(both.data);
    } else {
        add_message(c, "user", text, len);
    }
}

/* One turn. A message that got no answer is forgotten, so that it can be asked again. */
static void take_turn(struct chat *c, const char *text, size_t len)
{
    int32_t n_before = c->n_message;
    add_turn(c, text, len);
    cli_interrupt_clear();
    if (!answer(c)) {
        drop_messages(c, n_before);
        cli_write("\n", 1);
    }
    cli_interrupt_clear();
}

/* ---- saving: the messages as JSON, and beside them the sequence, to spare reading ---- */

static char *snapshot_path(const char *path)
{
    char *out = cli_alloc(strlen(path) + 8, 1);
    sprintf(out, "%s.kv", path);
    return out;
}

/* A file that is there is replaced whole or stays. Devices are none. */
static bool write_json(const json_t *value, const char *path)
{
    pith_error err;
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        cli_note("cannot write \"%s\": %s", path, strerror(S_ISDIR(st.st_mode) ? EISDIR : EINVAL));
        return false;
    }
    struct eval_text text = {0};
    eval_text_add_json(&text, value, JSON_INDENT(1));
    if (text.failed)
        cli_fail("no memory for the messages");
    bool ok = eval_write_file(path, &text, &err) == PITH_OK;
    eval_text_free(&text);
    if (!ok)
        cli_note("%s", err.message);
    return ok;
}

/* A model is mapped while it runs: who overwrites it loses it, and the chat with it. */
static bool may_write(const char *path)
{
    if (!outputs_would_lose(path))
        return true;
    cli_note("/save would replace \"%s\", which the chat reads: name another file", path);
    return false;
}

static json_t *messages_json(const struct chat *c)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < c->n_message; i++) {
        json_t *message = json_object();
        const char *content = c->messages[i].content;
        json_object_set_new(message, "role", json_string(c->messages[i].role));
        json_object_set_new(message, "content", cli_json_text(content, strlen(content)));
        json_array_append_new(list, message);
    }
    return list;
}

static void save(struct chat *c, const char *path)
{
    pith_error err;
    char *kv_path = snapshot_path(path);
    if (may_write(path) && may_write(kv_path)) {
        json_t *list = messages_json(c);
        bool written = write_json(list, path);
        if (written && pith_seq_save(c->s.seq, kv_path, &err) != PITH_OK)
            cli_note("%s", err.message);
        else if (written)
            cli_note("saved %d messages in %s, their KV in %s", c->n_message, path, kv_path);
        json_decref(list);
    }
    free(kv_path);
}

/* The snapshot only saves time: where it does not fit, the messages are read again. */
static void load_snapshot(struct chat *c, const char *path)
{
    pith_error err;
    pith_seq *seq;
    char *kv_path = snapshot_path(path);
    pith_seq_truncate(c->s.seq, 0, NULL);
    if (pith_seq_load(c->s.engine, kv_path, &seq, &err) == PITH_OK) {
        pith_seq_free(c->s.seq);
        c->s.seq = seq;
        cli_note("loaded %d messages and the KV of %d tokens", c->n_message, pith_seq_length(seq));
    } else {
        cli_note("loaded %d messages, to be read again: %s", c->n_message, err.message);
    }
    free(kv_path);
}

static json_t *read_json(const char *path, json_error_t *json_err)
{
    pith_error err;
    char *text;
    size_t len;
    if (eval_read_file(path, &text, &len, &err) != PITH_OK)
        return NULL;
    json_t *value = json_loadb(text, len, 0, json_err);
    free(text);
    return value;
}

/* Why the list is no conversation that this chat can go on with, or NULL. A message of the user's
   is what comes next, and the template may refuse it, as it may refuse roles. */
static const char *find_fault(struct chat *c, const json_t *list, char *buf, size_t cap)
{
    pith_error err;
    size_t n = json_array_size(list);
    if (!json_is_array(list))
        return "it holds no list of messages";
    pith_message *messages = cli_alloc(n + 1, sizeof(*messages));
    for (size_t i = 0; i <= n; i++) {
        const json_t *item = json_array_get(list, i);
        messages[i] = (pith_message){json_string_value(json_object_get(item, "role")),
                                     json_string_value(json_object_get(item, "content"))};
        if (i == n)
            messages[i] = (pith_message){"user", "Hello"};
        if (messages[i].role != NULL && messages[i].content != NULL)
            continue;
        free(messages);
        snprintf(buf, cap, "message %zu has no role or no content", i);
        return buf;
    }
    bool good = session_try_messages(c->s.model, &c->options->chat, messages, (int32_t)n + 1, &err);
    free(messages);
    if (good)
        return NULL;
    snprintf(buf, cap, "the next message would be refused: %s", err.message);
    return buf;
}

static void load(struct chat *c, const char *path)
{
    json_error_t json_err = {.text = "it cannot be read"};
    json_t *list = read_json(path, &json_err), *item;
    char buf[sizeof(((pith_error *)0)->message) + 64];
    size_t i;
    const char *fault = list == NULL ? json_err.text : find_fault(c, list, buf, sizeof(buf));
    if (fault != NULL) {
        cli_note("cannot load \"%s\": %s", path, fault);
        json_decref(list);
        return;
    }
    drop_messages(c, 0);
    json_array_foreach(list, i, item)
    {
        json_t *content = json_object_get(item, "content");
        add_message(c, json_string_value(json_object_get(item, "role")), json_string_value(content),
                    json_string_length(content));
    }
    json_decref(list);
    load_snapshot(c, path);
}

/* ---- what begins with a slash ---- */

static void show_help(struct chat *c, const char *argument);

static void reset(struct chat *c, const char *argument)
{
    (void)argument;
    start_over(c);
    pith_seq_truncate(c->s.seq, 0, NULL);
    cli_note("the conversation starts over");
}

static void show_kv(struct chat *c, const char *argument)
{
    (void)argument;
    picture_print(stderr, &c->s, NULL);
}

struct slash {
    const char *name;
    const char *argument; /* NULL: takes none */
    const char *help;
    void (*run)(struct chat *c, const char *argument); /* NULL: leaves */
};

static const struct slash slashes[] = {
    {"/help", NULL, "this list", show_help},
    {"/reset", NULL, "forget the conversation", reset},
    {"/save", "FILE", "write the conversation to FILE and its KV to FILE.kv", save},
    {"/load", "FILE", "go on with a conversation that was saved", load},
    {"/kv", NULL, "draw the KV memory", show_kv},
    {"/quit", NULL, "leave, as Ctrl-D", NULL},
};
#define N_SLASH (sizeof(slashes) / sizeof(slashes[0]))

static void show_help(struct chat *c, const char *argument)
{
    (void)c;
    (void)argument;
    for (size_t i = 0; i < N_SLASH; i++)
        fprintf(stderr, "  %-6s %-5s %s\n", slashes[i].name,
                slashes[i].argument != NULL ? slashes[i].argument : "", slashes[i].help);
    fprintf(stderr, "  A line that ends with \\ goes on in the next. Ctrl-C stops an answer.\n");
}

/* Returns false when the program shall end. */
static bool run_slash(struct chat *c, const char *line)
{
    const char *names[N_SLASH];
    size_t len = strcspn(line, " \t");
    const char *argument = line + len + strspn(line + len, " \t");
    for (size_t i = 0; i < N_SLASH; i++) {
        names[i] = slashes[i].name;
        if (strncmp(line, slashes[i].name, len) != 0 || slashes[i].name[len] != '\0')
            continue;
        if ((slashes[i].argument != NULL) != (argument[0] != '\0'))
            cli_note("%s takes %s", slashes[i].name,
                     slashes[i].argument != NULL ? "the name of a file" : "no argument");
        else if (slashes[i].run == NULL)
            return false;
        else
            slashes[i].run(c, argument);
        return true;
    }
    char word[32];
    snprintf(word, sizeof(word), "%.*s", (int)len, line);
    const char *near = pith_nearest(word, names, N_SLASH);
    cli_note("%s: there is no such command; %s %s", word, near != NULL ? "did you mean" : "see",
             near != NULL ? near : "/help");
    return true;
}

/* ---- the loop ---- */

/* Reads one message: a line, and those that follow a backslash at its end. The end of the input
   ends a message, too. */
static enum line_result read_message(struct chat *c, struct cli_text *out)
{
    *out = (struct cli_text){0};
    for (;;) {
        const char *line;
        size_t len;
        enum line_result result = line_read(c->reader, &line, &len);
        if (result == LINE_END && out->len > 0) {
            out->data[--out->len] = '\0'; /* in place of the line break that nothing follows */
            return LINE_TEXT;
        }
        if (result != LINE_TEXT) {
            free(out->data);
            return result;
        }
        bool more = len > 0 && line[len - 1] == '\\';
        char *grown = realloc(out->data, out->len + len + 1);
        if (grown == NULL)
            cli_fail("no memory for a message of %zu bytes", out->len + len);
        out->data = grown;
        memcpy(out->data + out->len, line, len);
        out->len += len;
        if (!more) {
            out->data[out->len] = '\0';
            return LINE_TEXT;
        }
        out->data[out->len - 1] = '\n';
    }
}

static void converse(struct chat *c)
{
    struct cli_text text;
    bool go_on = true, cancelled = false;
    while (go_on) {
        enum line_result result = read_message(c, &text);
        if (result == LINE_CANCELLED && !cancelled) {
            cli_note("Ctrl-C again or /quit leaves");
            cancelled = true;
            continue;
        }
        if (result != LINE_TEXT)
            return;
        cancelled = false;
        if (memchr(text.data, '\0', text.len) != NULL)
            cli_note("a message with a zero byte is not taken: messages are text");
        else if (text.data[0] == '/')
            go_on = run_slash(c, text.data);
        else if (text.len > 0)
            take_turn(c, text.data, text.len);
        free(text.data);
        /* A reader that went away or a full disk ends the conversation. */
        go_on = go_on && cli_write("", 0);
    }
}

/* ~/.pith_history unless another file, or with "" none, is named; the caller frees. */
static char *history_path(const struct options *o)
{
    const char *home = getenv("HOME");
    if (o->talk.history != NULL)
        return o->talk.history[0] != '\0' ? strdup(o->talk.history) : NULL;
    if (home == NULL)
        return NULL;
    char *path = cli_alloc(strlen(home) + 16, 1);
    sprintf(path, "%s/.pith_history", home);
    return path;
}

static int run(void *options)
{
    struct chat c = {.options = options};
    struct options *o = options;
    chat_system_read(&o->chat);
    chat_template_read(&o->chat);
    (void)engine_params(&o->model, &o->memory);
    c.s.n_ctx = o->memory.n_ctx;
    c.s.drafting = o->draft.what;
    session_load(&c.s, &o->model, false);
    draft_load(&c.s, &o->draft, &o->model);
    session_check_template(c.s.model, &o->chat);
    budget_settle(&c.s, &o->model, &o->memory, BUDGET_ONE, 0);
    session_start(&c.s, &o->model, &o->memory, 0);
    session_note_context(&c.s, o->memory.n_ctx);
    c.draft = draft_start(&c.s, &o->draft, &o->model);
    c.sample = sample_params(&o->sample, &c.bias);
    sample_check(&c.sample, c.s.model);
    pith_grammar *grammar = load_grammar(&o->grammar, c.s.model);
    c.sample.grammar = grammar;
    start_over(&c);
    char *history = history_path(o);
    outputs_check_input(history);
    c.reader = line_open("> ", history);
    if (line_is_interactive(c.reader))
        cli_note("%s, template %s; /help lists the commands",
                 c.s.info.name[0] != '\0' ? c.s.info.name : c.s.path,
                 o->chat.template_name != NULL ? o->chat.template_name : "of the model");
    cli_interrupt_catch();
    converse(&c);

    line_close(c.reader);
    free(history);
    drop_messages(&c, 0);
    free(c.messages);
    free(c.answer.data);
    pith_recall_free(c.recalled);
    free(c.bias);
    pith_grammar_free(grammar);
    session_free(&c.s);
    return EXIT_SUCCESS;
}

const struct command command_chat = {
    .name = "chat",
    .summary = "talk with a model",
    .synopsis = "-m MODEL",
    .notes =
        "Ctrl-C stops an answer and keeps what was said. Within the conversation, /help lists\n"
        "the commands: /reset, /save FILE, /load FILE, /kv, /quit. Messages may also come\n"
        "from a pipe, one a line; answers go to standard output, notes to standard error.",
    .groups = groups,
    .options_size = sizeof(struct options),
    .defaults = defaults,
    .run = run,
};
