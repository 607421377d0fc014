/*
 * fuzz_batch.c - a line of a batch (src/serve/batch), on any bytes, judged as where the file is
 * read: without a model. A finding is a sanitizer's report, a leak, or a refusal without a sentence
 * or with one of several lines. Bodies with a model are fuzz_request's.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/api/request.h"
#include "serve/batch/batch.h"

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

static void check_refusal(const struct serve_batch_line *line)
{
    json_t *answer = serve_batch_answer(line);
    const json_t *error = json_object_get(answer, "error");
    json_int_t code =
        json_integer_value(json_object_get(json_object_get(answer, "response"), "status_code"));
    expect(code >= 400 && code < 500 && json_is_string(json_object_get(error, "code")));
    check_sentence(json_string_value(json_object_get(error, "message")));
    expect(json_is_integer(json_object_get(answer, "line")) == (serve_batch_name(line) == NULL));
    json_decref(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_batch_setup setup = {0};
    struct serve_batch_line *line;
    pith_error err = {0};
    pith_generate_params_default(&setup.params);
    pith_status status = serve_batch_read((const char *)data, size, 1, &setup, 0, &line, &err);
    if (status == PITH_NOMEM)
        return 0;
    expect(status == PITH_OK || (status == PITH_FORMAT && serve_batch_failed(line)));
    if (status == PITH_OK)
        expect(serve_batch_name(line)[0] != '\0');
    else
        check_sentence(err.message);
    if (serve_batch_failed(line))
        check_refusal(line);
    else
        expect(serve_batch_n_answer(line) >= 1 && serve_batch_n_answer(line) <= SERVE_ANSWERS_MAX);
    serve_batch_free(line);
    return 0;
}
