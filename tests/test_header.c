/*
 * pith.h alone, as the strictest C99 and C++ programs see it: this one file is compiled in both
 * languages with -pedantic and -Werror, and it uses the header's types the way a caller does.
 */
#include "pith.h"
#include "pith.h" /* twice does no harm */

int main(void)
{
    pith_engine_params engine;
    pith_generate_params generate;
    pith_model_params model;
    pith_error err;
    pith_model *none = (pith_model *)0;
    int failed = 0;

    pith_engine_params_default(&engine);
    pith_generate_params_default(&generate);
    pith_model_params_default(&model);
    failed |= engine.chunk <= 0;
    failed |= generate.n_predict != -1;
    failed |= model.vocab_only;
    failed |= pith_model_load("/nonexistent", &model, &none, &err) != PITH_IO;
    failed |= err.status != PITH_IO || none != (pith_model *)0;
    failed |= pith_version()[0] == '\0';
    pith_model_free(none);
    return failed;
}
