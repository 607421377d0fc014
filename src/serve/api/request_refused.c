/*
 * request_refused.c - fields of OpenAI, llama-server and vLLM that ask for another answer than the
 * one that would come: told, not passed over. A value that asks for nothing is taken, since clients
 * send all their defaults.
 */
#include "serve/api/request_body.h"

#include <stdio.h>

enum nothing {
    NOTHING_AT_MOST, /* a number up to the limit asks for nothing */
    NOTHING_EXACT,   /* the limit does */
    NOTHING_FALSE,
    NOTHING_TRUE,
    NOTHING_EMPTY, /* an empty list, object or text */
};

struct refused {
    const char *key;
    enum nothing nothing;
    double limit;
    const char *instead; /* what there is; NULL: nothing */
};

static const struct refused refused[] = {
    /* steps of llama-server's sampler */
    {"top_n_sigma", NOTHING_AT_MOST, 0, NULL},
    {"xtc_probability", NOTHING_AT_MOST, 0, NULL},
    {"typical_p", NOTHING_EXACT, 1, NULL},
    {"dynatemp_range", NOTHING_AT_MOST, 0, NULL},
    {"dry_multiplier", NOTHING_AT_MOST, 0, "repeat_penalty"},
    {"mirostat", NOTHING_AT_MOST, 0, NULL},
    {"adaptive_target", NOTHING_AT_MOST, -1e-9, NULL},
    {"min_keep", NOTHING_AT_MOST, 1, NULL},
    /* the rest of its fields */
    {"n_indent", NOTHING_AT_MOST, 0, NULL},
    {"lora", NOTHING_EMPTY, 0, NULL},
    {"grammar_lazy", NOTHING_FALSE, 0, "tools with strict"},
    {"grammar_triggers", NOTHING_EMPTY, 0, "tools with strict"},
    {"parse_tool_calls", NOTHING_TRUE, 0, "tool_choice"},
    {"reasoning_budget_tokens", NOTHING_AT_MOST, -1, "reasoning_effort"},
    {"n_cmpl", NOTHING_EXACT, 1, "n"},
    {"image_data", NOTHING_EMPTY, 0, NULL},
    /* OpenAI's */
    {"functions", NOTHING_EMPTY, 0, "tools"},
    {"suffix", NOTHING_EMPTY, 0, "/infill"},
    {"audio", NOTHING_EMPTY, 0, NULL},
    {"web_search_options", NOTHING_EMPTY, 0, NULL},
    /* vLLM's */
    {"guided_json", NOTHING_EMPTY, 0, "response_format"},
    {"guided_regex", NOTHING_EMPTY, 0, "response_format"},
    {"guided_choice", NOTHING_EMPTY, 0, "response_format"},
    {"guided_grammar", NOTHING_EMPTY, 0, "grammar"},
    {"structured_outputs", NOTHING_EMPTY, 0, "response_format"},
    {"repetition_penalty", NOTHING_EXACT, 1, "repeat_penalty"},
    {"min_tokens", NOTHING_AT_MOST, 0, "ignore_eos"},
    {"stop_token_ids", NOTHING_EMPTY, 0, "stop"},
    {"bad_words", NOTHING_EMPTY, 0, "logit_bias"},
    {"allowed_token_ids", NOTHING_EMPTY, 0, "grammar"},
    {"prompt_logprobs", NOTHING_AT_MOST, 0, "echo"},
    {"use_beam_search", NOTHING_FALSE, 0, NULL},
    {"include_stop_str_in_output", NOTHING_FALSE, 0, NULL},
    {"skip_special_tokens", NOTHING_TRUE, 0, NULL},
    {"truncate_prompt_tokens", NOTHING_AT_MOST, 0, NULL},
    {"chat_template", NOTHING_EMPTY, 0, "chat_template_kwargs"},
    {"documents", NOTHING_EMPTY, 0, "chat_template_kwargs"},
};

static bool asks_nothing(const struct refused *f, const json_t *value)
{
    switch (f->nothing) {
    case NOTHING_AT_MOST:
        return json_is_false(value) ||
               (json_is_number(value) && json_number_value(value) <= f->limit);
    case NOTHING_EXACT:
        return json_is_number(value) && json_number_value(value) == f->limit;
    case NOTHING_FALSE:
        return json_is_false(value);
    case NOTHING_TRUE:
        return json_is_true(value);
    case NOTHING_EMPTY:
        return (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0) ||
               (json_is_string(value) && json_string_length(value) == 0);
    }
    return false;
}

static void refuse_other_outputs(struct serve_reader *rd, const json_t *modalities)
{
    char buf[SERVE_SHOW];
    for (size_t i = 0; i < json_array_size(modalities); i++)
        if (!request_is(json_array_get(modalities, i), "text"))
            SERVE_FAULT(rd, "modalities", "modalities: %s is not supported, \"text\" is",
                        request_show(rd, json_array_get(modalities, i), buf));
}

static void refuse_contradictions(struct serve_reader *rd, const json_t *body)
{
    char buf[SERVE_SHOW];
    const json_t *best_of = request_get(body, "best_of");
    int64_t best;
    if (best_of != NULL && (!request_whole(best_of, &best) || best != rd->r->n_answer))
        SERVE_FAULT(rd, "best_of", "best_of: %s is not n, which is %d",
                    request_show(rd, best_of, buf), rd->r->n_answer);
    if (rd->r->reply.echo && rd->r->api != SERVE_TEXT)
        SERVE_FAULT(rd, "echo", "echo: true is for /v1/completions only");
    else if (rd->r->reply.echo && rd->r->reply.top_logprobs >= 0 && !rd->setup->can_score_prompt)
        SERVE_FAULT(rd, "echo", "echo: true with logprobs is not supported here");
    if (rd->r->reply.predict_ms > 0 && rd->setup->no_timings)
        SERVE_FAULT(rd, "t_max_predict_ms", "t_max_predict_ms: %d is not supported here",
                    rd->r->reply.predict_ms);
    if (rd->r->reply.after_sampling && rd->r->api == SERVE_TEXT)
        SERVE_FAULT(rd, "post_sampling_probs",
                    "post_sampling_probs: true is for chats, /completion and /infill only");
}

void request_refuse_unsupported(struct serve_reader *rd, const json_t *body)
{
    char buf[SERVE_SHOW];
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        const struct refused *f = &refused[i];
        const json_t *value = request_get(body, f->key);
        if (value != NULL && !asks_nothing(f, value))
            SERVE_FAULT(rd, f->key, "%s: %s is not supported%s%s%s", f->key,
                        request_show(rd, value, buf), f->instead != NULL ? ", but " : "",
                        f->instead != NULL ? f->instead : "", f->instead != NULL ? " is" : "");
    }
    refuse_other_outputs(rd, request_get(body, "modalities"));
    refuse_contradictions(rd, body);
}
