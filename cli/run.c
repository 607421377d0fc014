/*
 * run.c - `pith run`: one prompt in, the text that follows out. Standard output carries generated
 * text and nothing else; everything about it goes to standard error.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <recorder.h>

#include "budget.h"
#include "command.h"
#include "draft.h"
#include "map.h"
#include "picture.h"
#include "ranks.h"
#include "recall.h"
#include "session.h"
#include "pith/inspect.h"
#include "pith/policy.h"

struct output_options {
    int32_t n_predict;
    struct option_texts stop;
    bool ignore_end;
    bool special;
    bool echo;
    bool progress;
    bool quiet;
    bool json;
    bool show_kv;
    bool chat;
    bool no_chat;
    const char *record;
    const char *map;
};

struct run_options {
    struct model_options model;
    struct prompt_options prompt;
    struct chat_options chat;
    struct output_options output;
    struct sample_options sample;
    struct grammar_options grammar;
    struct draft_options draft;
    struct memory_options memory;
};

#define AT(member) .offset = offsetof(struct output_options, member)
static const struct option output_option_table[] = {
    {"--predict", "-n", "N", OPTION_INT, AT(n_predict), .min = -1, .max = INT32_MAX,
     .absent = "until the model ends the text", .help = "most tokens to generate",
     .also = "--n-predict", .env = "LLAMA_ARG_N_PREDICT"},
    {"--stop", "-r", "TEXT", OPTION_TEXTS, AT(stop),
     .help = "end before this text; repeatable; -e applies to it", .also = "--reverse-prompt"},
    {"--ignore-eos", NULL, NULL, OPTION_FLAG, AT(ignore_end),
     .help = "go on where the model ends the text"},
    {"--special", NULL, NULL, OPTION_FLAG, AT(special), .help = "print special tokens",
     .also = "-sp"},
    {"--echo", NULL, NULL, OPTION_FLAG, AT(echo), .help = "print the prompt first",
     .also = "--display-prompt", .negative = "--no-display-prompt"},
    {"--chat", NULL, NULL, OPTION_FLAG, AT(chat),
     .help = "the text is a user's message: apply the chat template",
     .also = "-cnv --conversation"},
    {"--no-chat", "-no-cnv", NULL, OPTION_FLAG, AT(no_chat),
     .help = "the text is none: do not mention --chat", .also = "--no-conversation"},
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show how much of a long prompt is read"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "print no statistics at the end",
     .also = "--log-disable"},
    {"--json", NULL, NULL, OPTION_FLAG, AT(json), .help = "print the statistics as a line of JSON"},
    {"--show-kv", NULL, NULL, OPTION_FLAG, AT(show_kv),
     .help = "draw the KV memory at the end, on standard error"},
    {"--record", NULL, "FILE", OPTION_TEXT, AT(record), .absent = "", .writes = true,
     .help = "write queries, keys and values of every token as safetensors; until the end they are "
             "in memory, beside what --kv bounds"},
    {"--map", NULL, "FILE", OPTION_TEXT, AT(map), .absent = "", .writes = true,
     .help =
         "draw which positions each layer and head kept: NAME.html is a page, other names are SVG"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct run_options, model)},
    {"Prompt", prompt_option_table, offsetof(struct run_options, prompt)},
    {"Output", output_option_table, offsetof(struct run_options, output)},
    {"Chat template (with --chat)", chat_option_table, offsetof(struct run_options, chat)},
    {"Sampling", sample_option_table, offsetof(struct run_options, sample)},
    {"Grammar", grammar_option_table, offsetof(struct run_options, grammar)},
    {"Drafts", draft_option_table, offsetof(struct run_options, draft)},
    {"KV memory", memory_option_table, offsetof(struct run_options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct run_options *o = options;
    o->output.n_predict = -1;
    sample_options_default(&o->sample);
    draft_options_default(&o->draft, "auto");
    memory_options_default(&o->memory);
}

static bool print_text(void *user, const char *text, size_t len)
{
    (void)user;
    return cli_write(text, len) && !cli_interrupted();
}

/* Reads the message that the options give. */
static struct cli_text read_message(const struct run_options *o)
{
    struct cli_text text = prompt_read(&o->prompt);
    if (o->prompt.text == NULL)
        cli_chomp(&text);
    return text;
}

/* A model that was trained on messages answers worse to a text as it is, which is easily missed. */
static void hint_at_chat(const struct run_options *o, const pith_model *model)
{
    const struct output_options *out = &o->output;
    bool asked = out->chat || out->no_chat || o->prompt.parse_special;
    if (!asked && !out->quiet && !out->json && pith_chat_template(model) != NULL)
        cli_note(
            "the model has a chat template, and the text is read without it; --chat applies it "
            "(--no-chat: no such line)");
}

/* The message within the chat template, where asked; else NULL. */
static pith_prompt *make_prompt(const struct run_options *o, const pith_model *model,
                                const struct cli_text *text)
{
    if (!o->output.chat)
        return NULL;
    session_check_template(model, &o->chat);
    pith_message messages[2];
    int32_t n = 0;
    if (o->chat.system != NULL)
        messages[n++] = (pith_message){"system", o->chat.system};
    messages[n++] = (pith_message){"user", text->data};
    return session_prompt(model, &o->chat, messages, n);
}

/* With --parse-special the message's own special tokens count, too. */
static struct cli_ids make_ids(const struct run_options *o, const pith_model *model,
                               const pith_prompt *prompt, const struct cli_text *message)
{
    if (prompt != NULL && !o->prompt.parse_special)
        return session_prompt_ids(model, prompt, !o->prompt.no_bos);
    struct cli_text text = *message;
    if (prompt != NULL)
        text.data = (char *)pith_prompt_text(prompt, &text.len);
    return session_tokenize(model, text.data, text.len, prompt_flags(&o->prompt));
}

/* A prompt that begins with BOS is told of: it gets no other one, or is none as it is read. */
static void note_bos(const struct run_options *o, const pith_model *model,
                     const struct cli_text *text)
{
    char bos[64];
    size_t n = 0;
    int32_t id = pith_token_bos(model);
    if (o->output.chat || id < 0 ||
        pith_token_bytes(model, id, true, bos, sizeof(bos) - 1, &n) != PITH_OK || n == 0 ||
        text->len < n || memcmp(text->data, bos, n) != 0)
        return;
    bos[n] = '\0';
    if (o->prompt.parse_special)
        cli_note("the prompt begins with %s: no other is put in front", bos);
    else
        cli_note("the prompt begins with %s, which is read as letters: leave it out, or give "
                 "--parse-special",
                 bos);
}

/* Stop strings, unescaped with -e; the caller frees each. */
static void make_stops(const struct run_options *o, char **stops)
{
    for (int32_t i = 0; i < o->output.stop.n; i++) {
        const char *text = o->output.stop.text[i];
        if (text[0] == '\0')
            cli_fail_usage("--stop: an empty text would end everything");
        struct cli_text copy = o->prompt.escape ? cli_unescape(text, strlen(text))
                                                : (struct cli_text){strdup(text), 0};
        if (copy.data == NULL)
            cli_fail("no memory for a stop string");
        stops[i] = copy.data;
    }
}

static int report(const struct run_options *o, struct session *s,
                  const pith_generate_result *result)
{
    if (cli_is_terminal(STDOUT_FILENO) && result->n_generated > 0)
        cli_write("\n", 1);
    cli_finish_output();
    if (result->reason == PITH_STOP_FULL)
        session_explain_full(s);
    if (!o->output.quiet) {
        if (!o->output.json)
            recall_doubt(s);
        session_report(s, result, o->output.json);
        if (!o->output.json)
            recall_hint(s);
    }
    if (o->output.show_kv)
        picture_print(stderr, s, NULL);
    return cli_interrupted() ? EXIT_INTERRUPTED : EXIT_SUCCESS;
}

/* NULL where nothing is to be recorded. */
static struct eval_recorder *start_recorder(const struct run_options *o, const struct session *s)
{
    pith_error err;
    struct eval_recorder *recorder = NULL;
    if (o->output.record != NULL)
        cli_check(eval_recorder_create(s->seq, o->output.record, &recorder, &err), &err);
    return recorder;
}

/* Writes the rows that were evaluated until the text or Ctrl-C ended it; without any there is no
   file. */
static void finish_recorder(struct eval_recorder *recorder, const struct session *s)
{
    pith_error err;
    if (recorder != NULL && pith_seq_length(s->seq) > 0)
        cli_check(eval_recorder_write(recorder, &err), &err);
    eval_recorder_free(recorder);
}

/* ---- the map ---- */

static int32_t lane_positions(void *user, int32_t layer, int32_t head, int32_t *positions)
{
    const struct session *s = user;
    pith_lane_info lane;
    if (pith_seq_lane(s->seq, layer, head, &lane, positions, pith_seq_length(s->seq)) != PITH_OK)
        return 0;
    return lane.n_entry;
}

static bool is_page(const char *path)
{
    const char *end = strrchr(path, '.');
    return end != NULL && strcmp(end, ".html") == 0;
}

/* Draws the entries that the sequence holds when the text or Ctrl-C ended it; without any there is
   no map. */
static void write_map(const struct run_options *o, struct session *s, int32_t n_prompt)
{
    pith_error err;
    char size[32];
    struct eval_text drawing = {0};
    struct map map = {
        .model = s->info.name,
        .keep = s->keep,
        .n_layer = s->info.n_layer_kv,
        .n_head = s->info.n_head_kv,
        .n_token = pith_seq_length(s->seq),
        .n_prompt = n_prompt,
        .lane = lane_positions,
        .user = s,
    };
    if (o->output.map == NULL || map.n_token == 0)
        return;
    cli_check(pith_keep_get_rules(s->keep, &map.rules, &err), &err);
    pith_seq_keep_stats(s->seq, &map.stats);
    cli_check((is_page(o->output.map) ? map_page : map_draw)(&map, &drawing, &err), &err);
    pith_status status = eval_write_file(o->output.map, &drawing, &err);
    if (status != PITH_OK)
        cli_fail("--map: %s", err.message);
    if (!o->output.quiet && !o->output.json)
        fprintf(stderr, "map      %s in %s\n", cli_bytes((int64_t)drawing.len, size),
                o->output.map);
    eval_text_free(&drawing);
}

/* ---- the run ---- */

static int generate(const struct run_options *o, struct session *s, const struct cli_ids *ids,
                    const struct cli_text *message, const struct eval_recorder *recorder)
{
    pith_error err;
    pith_logit_bias *bias;
    char *stops[OPTION_TEXTS_MAX];
    pith_generate_result result;
    pith_generate_params params;
    make_stops(o, stops);
    pith_generate_params_default(&params);
    params.n_predict = o->output.n_predict;
    params.sample = sample_params(&o->sample, &bias);
    pith_ranks_tell(&params.sample.seed, sizeof(params.sample.seed)); /* it may be the clock's */
    sample_check(&params.sample, s->model);
    pith_grammar *grammar = load_grammar(&o->grammar, s->model);
    params.sample.grammar = grammar;
    params.stop = (const char *const *)stops;
    params.n_stop = o->output.stop.n;
    params.ignore_end = o->output.ignore_end;
    params.special = o->output.special;
    params.message = message->data;
    params.message_len = message->len;
    params.draft = s->drafts != NULL ? &s->draft : NULL;

    pith_status status =
        pith_generate(s->seq, ids->data, ids->n, &params, print_text, NULL, &result, &err);
    cli_progress_hide();
    free(bias);
    pith_grammar_free(grammar);
    for (int32_t i = 0; i < o->output.stop.n; i++)
        free(stops[i]);
    if (recorder != NULL)
        cli_check(eval_recorder_status(recorder, &err), &err);
    if (status == PITH_CANCELLED)
        return EXIT_INTERRUPTED;
    session_check(status, &err);
    return report(o, s, &result);
}

/* Tokens that may follow a prompt that fills the trained context, where -n does not say. */
#define BEYOND 512

/* Of prompt and answer; 0: as many as the trained context has. */
static int64_t most_tokens(const struct run_options *o, int32_t n_prompt, int32_t n_ctx_train)
{
    int64_t n = o->output.n_predict;
    if (n_prompt >= n_ctx_train)
        return n_prompt + (n >= 0 && n < BEYOND ? n : BEYOND);
    return n >= 0 && n_prompt + n <= n_ctx_train ? n_prompt + n : 0;
}

/* Bytes of pages where --keep never evicts the prompt. Then a budget that is a share grows to twice
   the prompt and its window, or to all of the text. 0: nothing more than usual. */
static int64_t pinned_pages(const struct session *s, const struct run_options *o, int32_t n_prompt,
                            int64_t most)
{
    pith_error err;
    pith_keep_rules rules;
    pith_engine_params p = engine_params(&o->model, &o->memory), full = p, alone = p;
    int64_t all, with, without, n = most > 0 ? most : s->info.n_ctx_train;
    if (pith_keep_get_rules(p.keep, &rules, &err) != PITH_OK || !rules.pin_prompt ||
        n_prompt > rules.pin_most)
        return 0;
    int64_t held = 2 * ((int64_t)n_prompt + rules.window) + rules.slack;
    full.keep = full.recall = NULL;
    alone.recall = NULL;
    if (pith_kv_estimate(s->model, &full, held < n ? held : n, &all, &err) != PITH_OK ||
        pith_kv_estimate(s->model, &p, n, &with, &err) != PITH_OK ||
        pith_kv_estimate(s->model, &alone, n, &without, &err) != PITH_OK)
        return 0;
    return all + with - without;
}

/* The sampler's params count in a size of --kv. */
static void settle(struct session *s, struct run_options *o, int64_t most)
{
    pith_logit_bias *bias;
    pith_sample_params sample = sample_params(&o->sample, &bias);
    s->sample = &sample;
    budget_settle(s, &o->model, &o->memory, BUDGET_ONE, most);
    s->sample = NULL;
    free(bias);
}

static int run(void *options)
{
    struct run_options *o = options;
    struct session s = {0};
    pith_error err;
    (void)engine_params(&o->model, &o->memory); /* complains before the model is loaded */
    if (o->output.chat && o->output.no_chat)
        cli_fail_usage("--chat and --no-chat are given, both");
    chat_system_read(&o->chat);
    chat_template_read(&o->chat);
    if (o->output.map != NULL && eval_check_file(o->output.map, &err) != PITH_OK)
        cli_fail("--map: %s", err.message);
    s.n_ctx = o->memory.n_ctx;
    s.drafting = o->draft.what;
    s.quiet = o->output.quiet || o->output.json;
    session_load(&s, &o->model, false);
    draft_load(&s, &o->draft, &o->model);
    struct cli_text message = read_message(o), shown = message;
    hint_at_chat(o, s.model);
    pith_prompt *prompt = make_prompt(o, s.model, &message);
    struct cli_ids ids = make_ids(o, s.model, prompt, &message);
    note_bos(o, s.model, &message);
    if (ids.n == 0)
        cli_fail_usage("the prompt is empty, and the model has no token to begin a text with");
    ranks_agree("prompt", ids.data, (size_t)ids.n * sizeof(*ids.data));

    int64_t most = most_tokens(o, ids.n, s.info.n_ctx_train);
    settle(&s, o, most);
    most += most > 0 ? recall_most_tokens(o->memory.recall) : 0;
    if (most > s.info.n_ctx_train && ids.n < s.info.n_ctx_train)
        most = 0;
    s.least_pages = pinned_pages(&s, o, ids.n, most);
    session_start(&s, &o->model, &o->memory, most);
    session_note_context(&s, o->memory.n_ctx > ids.n ? o->memory.n_ctx : ids.n);
    draft_start(&s, &o->draft, &o->model);
    struct eval_recorder *recorder = start_recorder(o, &s);
    if (o->output.progress)
        cli_progress_force_reading();
    cli_interrupt_catch();
    if (prompt != NULL)
        shown.data = (char *)pith_prompt_text(prompt, &shown.len);
    if (o->output.echo)
        cli_write(shown.data, shown.len);
    int status = generate(o, &s, &ids, &message, recorder);
    session_note_context(&s, pith_seq_length(s.seq)); /* the length that a keep policy allowed */
    finish_recorder(recorder, &s);
    write_map(o, &s, ids.n);
    free(ids.data);
    pith_prompt_free(prompt);
    free(message.data);
    session_free(&s);
    return status;
}

const struct command command_run = {
    .name = "run",
    .summary = "continue a text",
    .synopsis = "-m MODEL [-p TEXT | -f FILE]",
    .notes = "Standard output carries the generated text only; speeds and KV bytes follow on\n"
             "standard error. One newline at the end of a file or of standard input is dropped.\n"
             "Ctrl-C ends the text, a second one the program.\n"
             "\n"
             "  pith run -m model.gguf -p 'Once upon a time' -n 100\n"
             "  pith run -m model.gguf --chat -f question.txt --kv-memory 256MiB -ctk q8_0",
    .groups = groups,
    .options_size = sizeof(struct run_options),
    .defaults = defaults,
    .run = run,
};
