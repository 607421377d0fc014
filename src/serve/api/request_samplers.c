/*
 * request_samplers.c - samplers: which steps of the choice llama-server is to make, in which order.
 * The order is fixed here, so a list may leave steps out and may not turn them round. It runs after
 * the fields of the steps were read.
 */
#include "serve/api/request_body.h"

#include <string.h>

enum step { STEP_PENALTIES, STEP_TOP_K, STEP_TOP_P, STEP_MIN_P, STEP_TEMPERATURE, STEP_NONE };

struct sampler_name {
    const char *name;
    char letter;
    enum step step; /* NONE: is off, unless a field that request_refused.c knows turns it on */
};

static const struct sampler_name names[] = {
    {"penalties", 'e', STEP_PENALTIES},
    {"top_k", 'k', STEP_TOP_K},
    {"top_p", 'p', STEP_TOP_P},
    {"min_p", 'm', STEP_MIN_P},
    {"temperature", 't', STEP_TEMPERATURE},
    {"dry", 'd', STEP_NONE},
    {"typ_p", 'y', STEP_NONE},
    {"typical_p", 'y', STEP_NONE},
    {"xtc", 'x', STEP_NONE},
    {"top_n_sigma", 's', STEP_NONE},
    {"infill", 'i', STEP_NONE},
};

/* letter 0: a name counts, else a letter. */
static const struct sampler_name *find(const char *name, char letter)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (letter != '\0' ? names[i].letter == letter
                           : name != NULL && strcmp(names[i].name, name) == 0)
            return &names[i];
    return NULL;
}

/* Takes one more step; false: a fault. */
static bool use_sampler(struct serve_reader *rd, const struct sampler_name *s, const char *shown,
                        unsigned *steps)
{
    bool infill = s != NULL && s->letter == 'i';
    if (s == NULL || (infill && rd->r->api != SERVE_INFILL))
        SERVE_FAULT(rd, "samplers", "samplers: %s is not supported", shown);
    else if (s->step != STEP_NONE && *steps >> s->step != 0)
        SERVE_FAULT(rd, "samplers",
                    "samplers: %s comes again or too late: the order is penalties, top_k, top_p, "
                    "min_p, temperature",
                    shown);
    else if (s->step != STEP_NONE)
        *steps |= 1u << s->step;
    return !request_is_bad(rd);
}

static void switch_off(struct serve_request *r, unsigned steps)
{
    pith_sample_params *p = &r->params.sample;
    if ((steps >> STEP_PENALTIES & 1) == 0)
        p->penalty_last_n = 0;
    if ((steps >> STEP_TOP_K & 1) == 0)
        p->top_k = 0;
    if ((steps >> STEP_TOP_P & 1) == 0)
        p->top_p = 1.0f;
    if ((steps >> STEP_MIN_P & 1) == 0)
        p->min_p = 0.0f;
    if ((steps >> STEP_TEMPERATURE & 1) == 0)
        p->temperature = 1.0f;
}

void request_read_samplers(struct serve_reader *rd, const json_t *samplers)
{
    char buf[SERVE_SHOW];
    unsigned steps = 0;
    const char *text = json_string_value(samplers);
    if (samplers == NULL)
        return;
    if (text == NULL && !json_is_array(samplers))
        request_wrong_type(rd, "samplers", samplers, "an array of names or a string of letters");
    for (size_t i = 0; i < json_array_size(samplers); i++) {
        const json_t *one = json_array_get(samplers, i);
        if (!use_sampler(rd, find(json_string_value(one), '\0'), request_show(rd, one, buf),
                         &steps))
            return;
    }
    for (; text != NULL && *text != '\0'; text++)
        if (!use_sampler(rd, find(NULL, *text), serve_show_text(text, 1, buf), &steps))
            return;
    if (!request_is_bad(rd))
        switch_off(rd->r, steps);
}
