/*
 * calibrate_inspect.c - `pith calibrate inspect`: draws a file of statistics. It shows how narrow
 * the queries of each head are, which bands they lie in, and the attention against distance that
 * they predict. With a text it compares those curves with the model's logits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate.h"
#include "calibrate_importance.h"
#include "calibrate_loki.h"
#include "calibrate_picture.h"

#define PLOT_HEIGHT 9
#define PLOT_WIDTH 64
#define N_DOMINANT 2         /* bands of a head that are called dominant, as the paper does */
#define NARROW 0.95          /* R of dominant bands from which a head counts as concentrated */
#define MAX_CHECK_TOKEN 1024 /* of the text that curves are compared with */

static double resultant(const pith_stats_head *h, int32_t f)
{
    return h->abs[f] > 0.0f ? hypot((double)h->re[f], (double)h->im[f]) / (double)h->abs[f] : 0.0;
}

/* A band's expected contribution: mean |query| mean |key| (TriAttention, Equation 26), or the first
   alone where the file does not know the keys. */
static double contribution(const pith_stats_head *h, int32_t f)
{
    return (double)h->abs[f] * (h->key_abs != NULL ? (double)h->key_abs[f] : 1.0);
}

/* The bands that contribute most. */
static void dominant(const pith_stats_head *h, int32_t n_pair, int32_t *out)
{
    for (int32_t i = 0; i < N_DOMINANT; i++) {
        out[i] = -1;
        for (int32_t f = 0; f < n_pair; f++) {
            bool taken = false;
            for (int32_t j = 0; j < i; j++)
                taken |= out[j] == f;
            if (!taken && (out[i] < 0 || contribution(h, f) > contribution(h, out[i])))
                out[i] = f;
        }
    }
}

static double dominant_r(const pith_stats_head *h, int32_t n_pair)
{
    int32_t band[N_DOMINANT], n = n_pair < N_DOMINANT ? n_pair : N_DOMINANT;
    double sum = 0.0;
    dominant(h, n_pair, band);
    for (int32_t i = 0; i < n; i++)
        sum += resultant(h, band[i]);
    return sum / n;
}

/* Queries that the means of a head are of; -1: not known. Layers differ only in having none. */
static int64_t query_count(const pith_stats *stats, const pith_stats_info *info)
{
    int64_t n = -1;
    for (int32_t l = 0; l < info->n_layer; l++) {
        pith_stats_head h;
        if (pith_stats_get_head(stats, l, 0, &h) == PITH_OK && h.n_query > n)
            n = h.n_query;
    }
    return n;
}

static void print_origin(const pith_stats *stats, const pith_stats_info *i)
{
    static const char *const selections[] = {"not known", "all tokens", "generated tokens",
                                             "ranges of tokens"};
    static const char *const pairings[] = {"not known", "halves", "adjacent"};
    printf("format        %s\n", i->format);
    printf("model         %s\n", i->model[0] != '\0' ? i->model : "not known");
    if (i->fingerprint != 0)
        printf("fingerprint   %016llx\n", (unsigned long long)i->fingerprint);
    printf("text          %s\n", i->text[0] != '\0' ? i->text : "not known");
    if (i->n_token > 0)
        printf("tokens        %lld read, queries of %s\n", (long long)i->n_token,
               selections[i->select]);
    else
        printf("tokens        not known\n");
    for (int32_t r = 0; r < i->n_range && r < 8; r++)
        printf("              %d to %d%s\n", i->range[r].begin, i->range[r].end,
               r == 7 && i->n_range > 8 ? " ..." : "");
    if (query_count(stats, i) > 0)
        printf("queries       %lld of each head\n", (long long)query_count(stats, i));
    printf("shape         %d layers, %d query heads, %d bands, pairs %s\n", i->n_layer, i->n_head,
           i->n_pair, pairings[i->pairing]);
    printf("centres       %d\n", i->n_centre);
    printf("keys          %s\n", i->has_keys ? "yes" : "no");
}

/* A grid of layers and heads: 0 the lightest, 1 the darkest. */
static void print_cell(double value)
{
    static const char *const blocks[] = {" ", "\u2591", "\u2592", "\u2593", "\u2588"};
    static const char *const letters[] = {".", ":", "+", "*", "#"};
    int32_t level = (int32_t)(value * 5.0);
    level = level < 0 ? 0 : level > 4 ? 4 : level;
    printf("%s", cli_is_utf8() ? blocks[level] : letters[level]);
}

static void print_resultants(const pith_stats *stats, const pith_stats_info *info)
{
    double all = 0.0;
    int64_t n_band = 0, n_head = 0, n_narrow = 0;
    printf("\nR = |mean query| / mean |query|, a column per head, light 0, dark 1: over all bands, "
           "then "
           "over the %d\nwith the largest mean |query|%s\n",
           N_DOMINANT, info->has_keys ? " mean |key|" : "");
    for (int32_t l = 0; l < info->n_layer; l++) {
        double sum = 0.0;
        pith_stats_head h;
        if (pith_stats_get_head(stats, l, 0, &h) != PITH_OK || h.n_query == 0)
            continue;
        printf("  layer %3d  |", l);
        for (int32_t i = 0; i < info->n_head; i++) {
            double mean = 0.0;
            pith_stats_get_head(stats, l, i, &h);
            for (int32_t f = 0; f < info->n_pair; f++)
                mean += resultant(&h, f) / info->n_pair;
            print_cell(mean);
            sum += mean;
        }
        printf("| %.3f  |", sum / info->n_head);
        all += sum * info->n_pair;
        n_band += (int64_t)info->n_head * info->n_pair;
        sum = 0.0;
        for (int32_t i = 0; i < info->n_head; i++) {
            pith_stats_get_head(stats, l, i, &h);
            double r = dominant_r(&h, info->n_pair);
            print_cell(r);
            sum += r;
            n_head++;
            n_narrow += r > NARROW;
        }
        printf("| %.3f\n", sum / info->n_head);
    }
    printf("mean R over bands %.3f; heads whose dominant bands have R > %.2f: %.1f %%\n",
           all / (double)n_band, NARROW, 100.0 * (double)n_narrow / (double)n_head);
}

/* How often each band is dominant, per layer the most frequent ones. */
static void print_dominant(const pith_stats *stats, const pith_stats_info *info)
{
    int32_t *count = cli_alloc((size_t)info->n_pair, sizeof(*count));
    printf("\nDominant bands (heads that they dominate%s)\n",
           info->freq != NULL ? "; their wavelength in tokens" : "");
    for (int32_t l = 0; l < info->n_layer; l++) {
        pith_stats_head h;
        memset(count, 0, (size_t)info->n_pair * sizeof(*count));
        if (pith_stats_get_head(stats, l, 0, &h) != PITH_OK || h.n_query == 0)
            continue;
        for (int32_t i = 0; i < info->n_head; i++) {
            int32_t band[N_DOMINANT];
            pith_stats_get_head(stats, l, i, &h);
            dominant(&h, info->n_pair, band);
            for (int32_t j = 0; j < N_DOMINANT; j++)
                if (band[j] >= 0)
                    count[band[j]]++;
        }
        printf("  layer %3d ", l);
        for (int32_t n = 0; n < 4; n++) {
            int32_t best = 0;
            for (int32_t f = 1; f < info->n_pair; f++)
                if (count[f] > count[best])
                    best = f;
            if (count[best] == 0)
                break;
            printf("  %d (%d", best, count[best]);
            if (info->freq != NULL && info->freq[best] > 0.0)
                printf("; %.4g", 6.283185307179586 / info->freq[best]);
            printf(")");
            count[best] = 0;
        }
        printf("\n");
    }
    free(count);
}

/* y [PLOT_WIDTH] over distances x, which grow evenly in their logarithm. */
static void print_plot(const double *x, const double *y)
{
    double lo = y[0], hi = y[0];
    for (int32_t i = 1; i < PLOT_WIDTH; i++) {
        lo = fmin(lo, y[i]);
        hi = fmax(hi, y[i]);
    }
    for (int32_t row = PLOT_HEIGHT - 1; row >= 0; row--) {
        double from = lo + (hi - lo) * row / PLOT_HEIGHT;
        printf("  %10.3g |", row == PLOT_HEIGHT - 1 ? hi : from);
        for (int32_t i = 0; i < PLOT_WIDTH; i++) {
            int32_t at = hi > lo ? (int32_t)((y[i] - lo) / (hi - lo) * PLOT_HEIGHT) : 0;
            putchar((at < PLOT_HEIGHT ? at : PLOT_HEIGHT - 1) == row ? '*' : ' ');
        }
        putchar('\n');
    }
    printf("             %-*.0f%*.0f\n", PLOT_WIDTH / 2, x[0], PLOT_WIDTH / 2, x[PLOT_WIDTH - 1]);
}

static void print_curve(const pith_stats *stats, const struct session *s, int32_t layer,
                        int32_t head)
{
    double x[PLOT_WIDTH], y[PLOT_WIDTH];
    pith_error err;
    double most = s->info.n_ctx_train > 2 ? s->info.n_ctx_train : 2;
    for (int32_t i = 0; i < PLOT_WIDTH; i++)
        x[i] = exp(log(most) * i / (PLOT_WIDTH - 1));
    cli_check(pith_stats_curve(stats, s->model, layer, head, x, PLOT_WIDTH, y, &err), &err);
    printf("\nThe logit that the mean query of layer %d, head %d expects of the mean key, against "
           "distance in tokens\n",
           layer, head);
    print_plot(x, y);
}

/* Correlations of all curves with the text; the head with the highest goes to *layer and *head. */
static void print_reconstruction(const struct calibrate_options *o, const pith_stats *stats,
                                 const pith_stats_info *info, struct session *s, int32_t *layer,
                                 int32_t *head)
{
    size_t n_head = (size_t)info->n_head, n = (size_t)info->n_layer * n_head, best = 0;
    double *r = cli_alloc(n, sizeof(*r)), mean = 0.0;
    struct cli_ids ids = calibrate_read_tokens(o, s);
    pith_error err;
    int32_t n_token = ids.n < MAX_CHECK_TOKEN ? ids.n : MAX_CHECK_TOKEN;
    n_token = n_token < s->info.n_ctx_train ? n_token : s->info.n_ctx_train;
    session_check(pith_stats_reconstruct(stats, s->engine, ids.data, n_token, r, &err), &err);
    printf("\nCorrelation of these curves with the logits of %d tokens, a column per head\n",
           n_token);
    for (size_t l = 0; l < (size_t)info->n_layer; l++) {
        double sum = 0.0;
        printf("  layer %3zu  |", l);
        for (size_t h = 0; h < n_head; h++) {
            print_cell(r[l * n_head + h]);
            sum += r[l * n_head + h];
            if (r[l * n_head + h] > r[best])
                best = l * n_head + h;
        }
        printf("| %.3f\n", sum / (double)n_head);
        mean += sum;
    }
    printf("mean correlation %.3f; the highest %.3f\n", mean / (double)n, r[best]);
    *layer = (int32_t)(best / n_head);
    *head = (int32_t)(best % n_head);
    free(ids.data);
    free(r);
}

/* The page of drawings. */
static void draw_text(const struct calibrate_options *o, const pith_stats *stats, struct session *s,
                      int32_t layer, int32_t head)
{
    struct cli_ids ids = calibrate_read_tokens(o, s);
    int32_t n = ids.n < MAX_CHECK_TOKEN ? ids.n : MAX_CHECK_TOKEN;
    n = n < s->info.n_ctx_train ? n : s->info.n_ctx_train;
    calibrate_picture(s, stats, ids.data, n, layer, head, o->html);
    printf("\ndrawings      %s\n", o->html);
    free(ids.data);
}

int calibrate_inspect(struct calibrate_options *o)
{
    pith_stats *stats = NULL;
    pith_stats_info info;
    pith_error err;
    struct session s = {0};
    int32_t layer = 0, head = 0;
    if (loki_is_file(o->inspect)) {
        if (o->model.path != NULL)
            session_load(&s, &o->model, false);
        loki_inspect(o->inspect, s.model);
        session_free(&s);
        return EXIT_SUCCESS;
    }
    cli_check(pith_stats_load(o->inspect, &stats, &err), &err);
    pith_stats_get_info(stats, &info);
    if (o->model.path != NULL) {
        session_load(&s, &o->model, false);
        cli_check(pith_stats_check(stats, s.model, &err), &err);
    }
    print_origin(stats, &info);
    print_resultants(stats, &info);
    print_dominant(stats, &info);
    importance_print(stats);
    if (s.model != NULL && info.has_keys) {
        if (calibrate_source(o) != NULL) {
            o->memory.n_ctx = MAX_CHECK_TOKEN;
            if (o->html != NULL)
                o->memory.chunk = MAX_CHECK_TOKEN;
            session_start(&s, &o->model, &o->memory, 0);
            print_reconstruction(o, stats, &info, &s, &layer, &head);
        }
        layer = o->layer >= 0 ? o->layer : layer;
        head = o->head >= 0 ? o->head : head;
        print_curve(stats, &s, layer, head);
        if (o->html != NULL)
            draw_text(o, stats, &s, layer, head);
    } else if (s.model != NULL)
        printf("\nWithout statistics of keys there is no curve: gather them with pith calibrate "
               "queries.\n");
    pith_stats_free(stats);
    session_free(&s);
    return EXIT_SUCCESS;
}
