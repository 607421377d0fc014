/* with_template.h - a copy of a model's file with a chat template of the test's own. */
#ifndef WITH_TEMPLATE_H
#define WITH_TEMPLATE_H

#include <string.h>

#include "testing.h"

/* The replaced text takes a multiple of 32 bytes, so that the tensors stay aligned: blanks follow
   the template. */
static inline void write_with_template(const char *model, const char *path, const char *template)
{
    static const char key[] = "tokenizer.chat_template";
    FILE *in = fopen(model, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    size_t len = (size_t)ftell(in);
    rewind(in);
    char *file = malloc(len);
    assert_int_equal(fread(file, 1, len, in), len);
    fclose(in);
    uint64_t n_kv, n_key = strlen(key), n_text = strlen(template);
    while ((8 + n_key + 4 + 8 + n_text) % 32 != 0)
        n_text++;
    memcpy(&n_kv, file + 16, sizeof(n_kv));
    n_kv++;
    memcpy(file + 16, &n_kv, sizeof(n_kv));
    uint32_t type = 8; /* string */
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(file, 1, 24, out);
    fwrite(&n_key, 1, 8, out);
    fwrite(key, 1, n_key, out);
    fwrite(&type, 1, 4, out);
    fwrite(&n_text, 1, 8, out);
    fprintf(out, "%-*s", (int)n_text, template);
    fwrite(file + 24, 1, len - 24, out);
    assert_int_equal(fclose(out), 0);
    free(file);
}

#endif
