/*
 * calibrate_loki.c - `pith calibrate loki`: finds the bases of a model's keys, in which the read
 * policy Loki scores them. It also draws a file of bases: in how many dimensions the keys of each
 * layer have most of their variance.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calibrate_loki.h"
#include "command.h"

#define MAGIC "PITHLOKI"

static const double shares[] = {0.5, 0.9, 0.95, 0.99};
#define N_SHARE (sizeof(shares) / sizeof(shares[0]))

void loki_write(const struct session *s, const struct loki_source *from, bool progress, bool quiet,
                const char *path)
{
    struct cli_progress shown = {.what = "calibrating", .on = progress};
    pith_projection_params p;
    pith_projection *bases = NULL;
    pith_projection_info i;
    pith_error err;
    pith_projection_params_default(&p);
    p.keys = strcmp(from->keys, "plain") == 0 ? PITH_KEYS_PLAIN : PITH_KEYS_ROTATED;
    p.n_ctx = from->n_ctx;
    p.text = from->text;
    p.progress = cli_progress_step;
    p.progress_user = &shown;
    cli_progress_step(&shown, 0.0);
    cli_interrupt_catch();
    double start = clock_s();
    pith_status status =
        pith_projection_fit(s->engine, from->ids->data, from->ids->n, &p, &bases, &err);
    cli_progress_end(&shown);
    if (status == PITH_CANCELLED)
        cli_exit(EXIT_INTERRUPTED);
    session_check(status, &err);
    cli_check(pith_projection_save(bases, path, &err), &err);
    pith_projection_get_info(bases, &i);
    if (!quiet)
        fprintf(stderr,
                "%s: bases of %d layers, %d KV heads, %d dimensions (90 %% of the variance in at "
                "most %d), from %lld tokens in %.1f s\n",
                path, i.n_layer, i.n_head, i.dim, pith_projection_rank(bases, -1, -1, 0.9),
                (long long)i.n_token, clock_s() - start);
    pith_projection_free(bases);
}

bool loki_is_file(const char *path)
{
    char first[sizeof(MAGIC) - 1];
    FILE *file = fopen(path, "rb");
    size_t n = file != NULL ? fread(first, 1, sizeof(first), file) : 0;
    if (file != NULL)
        fclose(file);
    return n == sizeof(first) && memcmp(first, MAGIC, n) == 0;
}

static void print_ranks(const pith_projection *bases, const pith_projection_info *i)
{
    printf("\nDimensions in which the keys have a share of their variance: the mean over the KV "
           "heads of a layer,\nand the most of any\n  ");
    printf("%-9s", "");
    for (size_t s = 0; s < N_SHARE; s++)
        printf("%12.0f %%", 100.0 * shares[s]);
    printf("\n");
    for (int32_t l = 0; l < i->n_layer; l++) {
        printf("  layer %3d", l);
        for (size_t s = 0; s < N_SHARE; s++) {
            double sum = 0.0;
            for (int32_t h = 0; h < i->n_head; h++)
                sum += pith_projection_rank(bases, l, h, shares[s]);
            printf("%9.1f %4d", sum / i->n_head, pith_projection_rank(bases, l, -1, shares[s]));
        }
        printf("\n");
    }
    printf("  %-9s", "all");
    for (size_t s = 0; s < N_SHARE; s++)
        printf("%14d", pith_projection_rank(bases, -1, -1, shares[s]));
    printf("\n");
}

void loki_inspect(const char *path, const pith_model *model)
{
    pith_projection *bases = NULL;
    pith_projection_info i;
    pith_error err;
    cli_check(pith_projection_load(path, &bases, &err), &err);
    if (model != NULL)
        cli_check(pith_projection_check(bases, model, &err), &err);
    pith_projection_get_info(bases, &i);
    printf("format        bases of keys, for --read loki:projection=%s\n", path);
    printf("model         %s\n", i.model[0] != '\0' ? i.model : "not known");
    printf("fingerprint   %016llx\n", (unsigned long long)i.fingerprint);
    printf("text          %s\n", i.text[0] != '\0' ? i.text : "not known");
    printf("tokens        %lld read, keys %s\n", (long long)i.n_token,
           i.keys == PITH_KEYS_PLAIN ? "before rotation" : "as they are stored");
    printf("shape         %d layers, %d KV heads, %d dimensions\n", i.n_layer, i.n_head, i.dim);
    print_ranks(bases, &i);
    pith_projection_free(bases);
}
