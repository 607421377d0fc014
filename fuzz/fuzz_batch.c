/*
 * fuzz_batch.c - a line of a batch (cli/batch_line.h), on any bytes, judged as where the file is
 * read: without a model. A finding is a sanitizer's report, a leak, or a refusal without a sentence
 * or with one of several lines. Bodies with a model are fuzz_request's.
 */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_setup setup;
    struct batch_line line;
    pith_error err = {0};
    serve_setup_default(&setup);
    setup.no_stream = true;
    pith_status status = batch_line_parse((const char *)data, size, &setup, &line, &err);
    if (status != PITH_OK) {
        expect(status == PITH_FORMAT || status == PITH_NOMEM);
        check_sentence(err.message);
        return 0;
    }
    expect(line.custom_id[0] != '\0' && (line.request == NULL) == (line.fault.code != 0));
    if (line.fault.code != 0) {
        expect(line.fault.code >= 400 && line.fault.code < 500 && line.fault.type != NULL);
        check_sentence(line.fault.message);
    } else {
        expect(serve_request_answers(line.request) >= 1 &&
               serve_request_answers(line.request) <= SERVE_ANSWERS_MAX);
    }
    batch_line_free(&line);
    return 0;
}
