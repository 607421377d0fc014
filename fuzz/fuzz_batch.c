/*
 * fuzz_batch.c - a line of a batch (cli/batch_line.h), on any bytes. A finding is a sanitizer's
 * report, a leak, a refusal without a sentence or with one of several lines, or a request beyond
 * what it may ask for.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool ok)
{
    if (!ok)
        abort();
}

static void check_sentence(const char *text)
{
    expect(text[0] != '\0' && strchr(text, '\n') == NULL);
}

static void check_params(const pith_generate_params *p)
{
    const pith_sample_params *s = &p->sample;
    expect(p->n_predict >= -1 && p->n_stop <= BATCH_STOPS_MAX);
    expect(s->temperature >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->top_k >= 0);
    for (int32_t i = 0; i < p->n_stop; i++)
        expect(p->stop[i][0] != '\0');
    for (int32_t i = 0; i < s->n_bias; i++)
        expect(s->bias[i].token >= 0 && !isnan(s->bias[i].bias));
}

/* What a request that is not refused points to is there. */
static void check_request(const struct batch_line *line)
{
    size_t len = 0;
    expect(line->custom_id[0] != '\0' && line->n_answer >= 1);
    expect(line->top_logprobs >= -1 && line->top_logprobs <= BATCH_TOP_MAX);
    check_params(&line->params);
    expect(line->endpoint == BATCH_CHAT ? line->n_message > 0 : line->n_prompt > 0);
    expect(line->n_prompt * line->n_answer <= BATCH_ANSWERS_MAX);
    for (int32_t i = 0; i < line->n_message; i++)
        len += strlen(line->message[i].role) + strlen(line->message[i].content);
    for (int32_t i = 0; i < line->n_prompt; i++) {
        const struct batch_prompt *p = &line->prompt[i];
        for (size_t k = 0; p->text != NULL && k < p->len; k++)
            len += p->text[k] != '\0';
        for (int32_t k = 0; p->text == NULL && k < p->n_id; k++)
            expect(p->ids[k] >= 0);
        expect(p->text != NULL || p->n_id > 0);
    }
    expect(len < SIZE_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct batch_line defaults = {.n_answer = 1, .top_logprobs = -1}, line;
    pith_error err = {0};
    pith_generate_params_default(&defaults.params);
    pith_status status = batch_line_parse((const char *)data, size, &defaults, &line, &err);
    if (status != PITH_OK) {
        expect(status == PITH_FORMAT || status == PITH_NOMEM);
        check_sentence(err.message);
        return 0;
    }
    if (line.fault.code != 0) {
        expect(line.fault.code >= 400 && line.fault.code < 500 && line.fault.type != NULL);
        check_sentence(line.fault.message);
    } else {
        check_request(&line);
    }
    batch_line_free(&line);
    return 0;
}
