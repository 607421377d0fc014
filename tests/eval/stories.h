/*
 * stories.h - for tests that want a trained model which others made: stories260K of llama2.c, made
 * into GGUF by scripts/convert_llama2c.py. Without its files a test is skipped.
 */
#ifndef TESTS_STORIES_H
#define TESTS_STORIES_H

#include "pith/pith.h"
#include "testing.h"

/* The caller frees. */
static inline pith_model *stories_load(void)
{
    char path[64], line[9000];
    pith_model *model = NULL;
    pith_model_params params;
    const char *weights = test_data("weights/stories260K.bin");
    const char *words = test_data("weights/tok512.bin");
    if (system("python3 -c '' >/dev/null 2>&1") != 0)
        test_skip("there is no python3");
    snprintf(path, sizeof(path), "stories260K-%d.gguf", (int)getpid());
    snprintf(line, sizeof(line), "python3 -B '%s' '%s' '%s' '%s' >/dev/null",
             PITH_SOURCE_DIR "/scripts/convert_llama2c.py", weights, words, path);
    assert_int_equal(system(line), 0);
    pith_model_params_default(&params);
    params.n_thread = 1;
    pith_status status = pith_model_load(path, &params, &model, &err);
    unlink(path);
    if (status != PITH_OK)
        fail_msg("%s", err.message);
    return model;
}

#endif
