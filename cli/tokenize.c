/*
 * tokenize.c - `pith tokenize`: text to ids and back, with nothing of a model but its vocabulary.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "session.h"

struct tokenize_options {
    bool json;
    bool detokenize;
    bool special;
    const char *ids;
};

struct options {
    struct model_options model;
    struct prompt_options prompt;
    struct tokenize_options tokenize;
};

#define AT(member) .offset = offsetof(struct tokenize_options, member)
static const struct option tokenize_option_table[] = {
    {"--json", NULL, NULL, OPTION_FLAG, AT(json), .help = "print the ids as a JSON list"},
    {"--detokenize", NULL, NULL, OPTION_FLAG, AT(detokenize),
     .help = "the text is ids, as 1,2,3 or a JSON list: print what they stand for"},
    {"--ids", NULL, "IDS", OPTION_TEXT, AT(ids), .absent = "",
     .help = "ids to detokenize, in place of a text"},
    {"--special", NULL, NULL, OPTION_FLAG, AT(special),
     .help = "print special tokens too when detokenizing"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model)},
    {"Text", prompt_option_table, offsetof(struct options, prompt)},
    {"Tokens", tokenize_option_table, offsetof(struct options, tokenize)},
    LLAMA_GROUP,
    {0},
};

static void print_json(const struct cli_ids *ids)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < ids->n; i++)
        json_array_append_new(list, json_integer(ids->data[i]));
    cli_json_print(list, 0);
}

/* One line per token: its id and its bytes, as JSON writes them, so that a line stays a line. */
static void print_table(const pith_model *model, const struct cli_ids *ids)
{
    size_t cap = 256, len;
    char *piece = cli_alloc(cap, 1);
    for (int32_t i = 0; i < ids->n; i++) {
        pith_status status = pith_token_bytes(model, ids->data[i], true, piece, cap, &len);
        if (status == PITH_RANGE) {
            free(piece);
            cap = len;
            piece = cli_alloc(cap, 1);
            status = pith_token_bytes(model, ids->data[i], true, piece, cap, &len);
        }
        if (status != PITH_OK)
            cli_fail("token %d: %s", ids->data[i], pith_status_text(status));
        printf("%7d  ", ids->data[i]);
        json_t *text = cli_json_text(piece, len);
        if (text == NULL)
            cli_fail("no memory for the text of token %d", ids->data[i]);
        json_dumpf(text, stdout, JSON_ENCODE_ANY);
        json_decref(text);
        putchar('\n');
    }
    free(piece);
}

static void detokenize(const pith_model *model, const struct options *o, int32_t n_vocab)
{
    pith_error err;
    size_t len = 0;
    struct cli_ids ids;
    if (o->tokenize.ids != NULL) {
        ids = ids_parse("--ids", o->tokenize.ids, n_vocab);
    } else {
        struct cli_text text = prompt_read(&o->prompt);
        ids = ids_parse("--detokenize", text.data, n_vocab);
        free(text.data);
    }
    pith_status status =
        pith_detokenize(model, ids.data, ids.n, o->tokenize.special, NULL, 0, &len, &err);
    if (status != PITH_RANGE)
        cli_check(status, &err);
    char *out = cli_alloc(len, 1);
    cli_check(pith_detokenize(model, ids.data, ids.n, o->tokenize.special, out, len, &len, &err),
              &err);
    cli_write(out, len);
    free(out);
    free(ids.data);
}

static int run(void *options)
{
    const struct options *o = options;
    struct session s = {0};
    if (o->tokenize.ids != NULL && !o->tokenize.detokenize)
        cli_fail_usage("--ids: ids are not tokenized; --detokenize turns them into text");
    session_load(&s, &o->model, true);
    if (o->tokenize.detokenize) {
        detokenize(s.model, o, s.info.n_vocab);
    } else {
        struct cli_text text = prompt_read(&o->prompt);
        struct cli_ids ids =
            session_tokenize(s.model, text.data, text.len, prompt_flags(&o->prompt));
        if (o->tokenize.json)
            print_json(&ids);
        else
            print_table(s.model, &ids);
        free(ids.data);
        free(text.data);
    }
    session_free(&s);
    return EXIT_SUCCESS;
}

const struct command command_tokenize = {
    .name = "tokenize",
    .summary = "turn a text into token ids, or back",
    .synopsis = "-m MODEL [-p TEXT | -f FILE]",
    .notes = "A file of vocabulary alone will do. Texts are taken byte for byte: a newline at the\n"
             "end of a file is part of it.\n"
             "\n"
             "  pith tokenize -m model.gguf -p 'Hello world' --json\n"
             "  pith tokenize -m model.gguf --detokenize --ids 15043,3186",
    .groups = groups,
    .options_size = sizeof(struct options),
    .run = run,
};
