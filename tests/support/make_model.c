/*
 * make_model.c - writes a model with random weights: make_model OUT.gguf KEY=VALUE... struct
 * model_spec in model_maker.h lists the keys.
 */
#include <stdio.h>

#include "model_maker.h"

int main(int argc, char **argv)
{
    struct model_spec spec;
    pith_error err = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: make_model OUT.gguf KEY=VALUE...\n");
        return 2;
    }
    model_spec_default(&spec);
    for (int i = 2; i < argc; i++)
        if (model_spec_parse(&spec, argv[i], &err) != PITH_OK) {
            fprintf(stderr, "make_model: %s\n", err.message);
            return 2;
        }
    if (model_make(&spec, argv[1], &err) != PITH_OK) {
        fprintf(stderr, "make_model: %s\n", err.message);
        return 1;
    }
    return 0;
}
