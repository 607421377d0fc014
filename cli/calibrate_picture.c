/*
 * calibrate_picture.c - drawings of one text. Queries and keys stand in the complex plane
 * (TriAttention, Figure 2A), logits against distance beside the predicted curve (2D). Then come
 * distances of blocks (MemShare, Figure 3), and the likeness of neighbouring queries (QuoKA, Figure
 * 5). It is one file of HTML, which asks the network for nothing.
 *
 * Invariant: the text is one pass, so that the tap shows each layer once with all tokens.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate_picture.h"
#include "pith/inspect.h"
#include "svg.h"

#define N_BAND 2    /* bands whose clouds are drawn */
#define BLOCK 16    /* tokens of a block */
#define N_CURVE 48  /* distances, evenly in their logarithm */
#define MAX_LAG 64  /* between queries */
#define WIDTH 420.0 /* of a drawing, and its room inside */
#define HEIGHT 300.0
#define LEFT 52.0
#define BOTTOM 34.0
#define TOP 12.0

struct gathering {
    const pith_stats_info *stats;
    pith_model_info model;
    int32_t layer, head, n_token, n_block, n_layer;
    int32_t band[N_BAND];
    float *q, *k;                            /* [N_BAND][n_token][2] before rotation; owned */
    double logit[N_CURVE], n_logit[N_CURVE]; /* sums by distance, and how many */
    double like[MAX_LAG + 1], n_like[MAX_LAG + 1];
    double *apart; /* [n_block][n_block] sums over layers; owned */
    float *flat;   /* [n_token][n_head_kv * head_dim_k] a layer's keys before rotation; owned */
};

/* ---- gathering ---- */

static int32_t pair_at(const pith_stats_info *i, int32_t f, int32_t second)
{
    return i->pairing == PITH_PAIRING_ADJACENT ? 2 * f + second : f + second * i->n_pair;
}

/* A key as it was before rotation. */
static void turn_back(const pith_stats_info *i, const float *k, int32_t dim, int32_t pos,
                      float *out)
{
    memcpy(out, k, (size_t)dim * sizeof(*out));
    for (int32_t f = 0; f < i->n_pair; f++) {
        double angle = -(double)pos * i->freq[f], c = cos(angle), s = sin(angle);
        int32_t a = pair_at(i, f, 0), b = pair_at(i, f, 1);
        out[a] = (float)(k[a] * c - k[b] * s);
        out[b] = (float)(k[a] * s + k[b] * c);
    }
}

static double curve_distance(int32_t i, int32_t n_token)
{
    return exp(log((double)n_token) * i / (N_CURVE - 1));
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void gather_head(struct gathering *g, const pith_tap_rows *r)
{
    int32_t dim = g->model.head_dim_k, n_q = g->model.n_head * dim, n_k = g->model.n_head_kv * dim;
    int32_t kv = g->head / (g->model.n_head / g->model.n_head_kv);
    const float *pre = r->q_pre + g->head * dim, *q = r->q + g->head * dim, *k = r->k + kv * dim;
    for (int32_t b = 0; b < N_BAND; b++)
        for (int32_t t = 0; t < r->n_token; t++)
            for (int32_t x = 0; x < 2; x++) {
                size_t to = ((size_t)b * (size_t)g->n_token + (size_t)t) * 2 + (size_t)x;
                int32_t at = pair_at(g->stats, g->band[b], x);
                g->q[to] = pre[(size_t)t * (size_t)n_q + (size_t)at];
                g->k[to] = g->flat[(size_t)t * (size_t)n_k + (size_t)(kv * dim + at)];
            }
    for (int32_t t = 0; t < r->n_token; t++) {
        const float *own = q + (size_t)t * (size_t)n_q;
        for (int32_t i = 0; i < N_CURVE; i++) {
            int32_t from = t - (int32_t)(curve_distance(i, g->n_token) + 0.5);
            if (from < 0)
                break;
            g->logit[i] += dot(own, k + (size_t)from * (size_t)n_k, dim);
            g->n_logit[i]++;
        }
        const float *a = pre + (size_t)t * (size_t)n_q;
        for (int32_t lag = 1; lag <= MAX_LAG && lag <= t; lag++) {
            const float *b = pre + (size_t)(t - lag) * (size_t)n_q;
            double length = sqrt(dot(a, a, dim) * dot(b, b, dim));
            g->like[lag] += length > 0.0 ? dot(a, b, dim) / length : 0.0;
            g->n_like[lag]++;
        }
    }
}

/* The root mean square difference of an element of two blocks. */
static double block_apart(const float *x, int32_t a, int32_t b, int32_t row)
{
    const float *p = x + (size_t)a * BLOCK * (size_t)row, *q = x + (size_t)b * BLOCK * (size_t)row;
    double sum = 0.0;
    for (int32_t i = 0; i < BLOCK * row; i++)
        sum += ((double)p[i] - q[i]) * ((double)p[i] - q[i]);
    return sqrt(sum / (BLOCK * row));
}

static bool on_rows(void *user, const pith_tap_rows *r)
{
    struct gathering *g = user;
    int32_t n_head = g->model.n_head_kv, dim = g->model.head_dim_k, row = n_head * dim;
    if (r->n_token != g->n_token)
        return true;
    for (int32_t t = 0; t < r->n_token; t++)
        for (int32_t h = 0; h < n_head; h++) {
            size_t at = (size_t)t * (size_t)row + (size_t)(h * dim);
            turn_back(g->stats, r->k + at, dim, r->pos0 + t, g->flat + at);
        }
    for (int32_t a = 0; a < g->n_block; a++)
        for (int32_t b = 0; b < a; b++)
            g->apart[a * g->n_block + b] +=
                0.5 * (block_apart(g->flat, a, b, row) +
                       block_apart(r->v, a, b, n_head * g->model.head_dim_v));
    g->n_layer++;
    if (r->layer == g->layer)
        gather_head(g, r);
    return true;
}

/* ---- drawing ---- */

struct axes {
    double x0, x1, y0, y1;
    bool log_x;
};

static double place_x(const struct axes *a, double x)
{
    double share = a->log_x ? log(x / a->x0) / log(a->x1 / a->x0) : (x - a->x0) / (a->x1 - a->x0);
    return LEFT + share * (WIDTH - LEFT - 20.0);
}

static double place_y(const struct axes *a, double y)
{
    return HEIGHT - BOTTOM - (y - a->y0) / (a->y1 - a->y0) * (HEIGHT - BOTTOM - TOP);
}

/* A figure with its caption; the drawing goes on until end_figure. */
static void begin_figure(struct eval_text *t, const char *title)
{
    eval_text_add(t, "<figure><figcaption>");
    svg_escape(t, title);
    eval_text_printf(t, "</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", WIDTH,
                     HEIGHT);
}

static void end_figure(struct eval_text *t, const char *note)
{
    eval_text_add(t, "</svg><p>");
    svg_escape(t, note);
    eval_text_add(t, "</p></figure>\n");
}

static void draw_axes(struct eval_text *t, struct axes *a)
{
    char label[32];
    if (!(a->y1 > a->y0))
        a->y1 = a->y0 + 1.0;
    if (!(a->x1 > a->x0))
        a->x1 = a->x0 + 1.0;
    eval_text_printf(t, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", LEFT, TOP,
                     HEIGHT - BOTTOM, WIDTH - 20.0);
    for (int i = 0; i <= 4; i++) {
        double share = i / 4.0, y = a->y0 + share * (a->y1 - a->y0);
        double x = a->log_x ? a->x0 * pow(a->x1 / a->x0, share) : a->x0 + share * (a->x1 - a->x0);
        snprintf(label, sizeof(label), "%.3g", y);
        svg_text(t, LEFT - 6.0, place_y(a, y) + 4.0, "y", label);
        snprintf(label, sizeof(label), "%.4g", x);
        svg_text(t, place_x(a, x), HEIGHT - BOTTOM + 16.0, "x", label);
    }
}

/* The range of values, widened to hold more of them. */
static void widen(double *lo, double *hi, double x)
{
    *lo = x < *lo ? x : *lo;
    *hi = x > *hi ? x : *hi;
}

static void draw_points(struct eval_text *t, const struct axes *a, const float *at, int32_t n,
                        const char *class_name)
{
    double x = 0.0, y = 0.0;
    eval_text_printf(t, "<g class=\"%s\">", class_name);
    for (int32_t i = 0; i < n; i++) {
        x += at[2 * i] / n;
        y += at[2 * i + 1] / n;
        eval_text_printf(t, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"1.6\"/>", place_x(a, at[2 * i]),
                         place_y(a, at[2 * i + 1]));
    }
    eval_text_printf(t, "<path class=\"mean\" d=\"M%.1f %.1fL%.1f %.1f\"/></g>\n", place_x(a, 0.0),
                     place_y(a, 0.0), place_x(a, x), place_y(a, y));
}

static void draw_cloud(struct eval_text *t, const struct gathering *g, int32_t b)
{
    char title[96];
    size_t from = (size_t)b * (size_t)g->n_token * 2;
    struct axes a = {0.0, 0.0, 0.0, 0.0, false};
    for (int32_t i = 0; i < g->n_token; i++) {
        widen(&a.x0, &a.x1, g->q[from + 2 * (size_t)i]);
        widen(&a.y0, &a.y1, g->q[from + 2 * (size_t)i + 1]);
        widen(&a.x0, &a.x1, g->k[from + 2 * (size_t)i]);
        widen(&a.y0, &a.y1, g->k[from + 2 * (size_t)i + 1]);
    }
    snprintf(title, sizeof(title), "Queries and keys in band %d of layer %d, head %d",
             (int)g->band[b], (int)g->layer, (int)g->head);
    begin_figure(t, title);
    draw_axes(t, &a);
    draw_points(t, &a, g->k + from, g->n_token, "second");
    draw_points(t, &a, g->q + from, g->n_token, "first");
    end_figure(t, "The complex plane before rotation: queries in the first colour, keys in the "
                  "second, lines to their means.");
}

/* y [n] over x [n]; what is NAN is left out. */
static void draw_line(struct eval_text *t, const struct axes *a, const double *x, const double *y,
                      int32_t n, const char *class_name)
{
    bool begun = false;
    eval_text_printf(t, "<path class=\"line %s\" d=\"", class_name);
    for (int32_t i = 0; i < n; i++) {
        if (isnan(y[i]))
            continue;
        eval_text_printf(t, "%c%.1f %.1f", begun ? 'L' : 'M', place_x(a, x[i]), place_y(a, y[i]));
        begun = true;
    }
    eval_text_add(t, "\"/>\n");
}

static void draw_lines(struct eval_text *t, struct axes a, const double *x, const double *first,
                       const double *second, int32_t n, const char *title, const char *note)
{
    a.y0 = DBL_MAX;
    a.y1 = -DBL_MAX;
    for (int32_t i = 0; i < n; i++) {
        if (!isnan(first[i]))
            widen(&a.y0, &a.y1, first[i]);
        if (second != NULL)
            widen(&a.y0, &a.y1, second[i]);
    }
    if (a.y0 > a.y1)
        a.y0 = a.y1 = 0.0;
    begin_figure(t, title);
    draw_axes(t, &a);
    draw_line(t, &a, x, first, n, "first");
    if (second != NULL)
        draw_line(t, &a, x, second, n, "second");
    end_figure(t, note);
}

static void draw_curve(struct eval_text *t, const struct gathering *g, const struct session *s,
                       const pith_stats *stats)
{
    double x[N_CURVE], seen[N_CURVE], expected[N_CURVE];
    pith_error err;
    for (int32_t i = 0; i < N_CURVE; i++) {
        x[i] = curve_distance(i, g->n_token);
        seen[i] = g->n_logit[i] > 0.0 ? g->logit[i] / g->n_logit[i] : NAN;
    }
    bool known = g->stats->has_keys && pith_stats_curve(stats, s->model, g->layer, g->head, x,
                                                        N_CURVE, expected, &err) == PITH_OK;
    draw_lines(t, (struct axes){1.0, g->n_token, 0.0, 0.0, true}, x, seen, known ? expected : NULL,
               N_CURVE, "Logits against distance",
               known ? "The mean logit of this text by distance in tokens (first colour), and the "
                       "curve that the statistics predict (second)."
                     : "The mean logit of this text by distance in tokens. The statistics hold no "
                       "keys, so that they predict no curve.");
}

static void draw_likeness(struct eval_text *t, const struct gathering *g)
{
    double x[MAX_LAG], y[MAX_LAG];
    int32_t n = g->n_token - 1 < MAX_LAG ? g->n_token - 1 : MAX_LAG;
    for (int32_t i = 0; i < n; i++) {
        x[i] = i + 1;
        y[i] = g->n_like[i + 1] > 0.0 ? g->like[i + 1] / g->n_like[i + 1] : NAN;
    }
    draw_lines(
        t, (struct axes){1.0, n, 0.0, 0.0, false}, x, y, NULL, n,
        "Likeness of neighbouring queries",
        "The mean cosine of two queries of the head, before rotation, by how many tokens lie "
        "between them.");
}

static void draw_blocks(struct eval_text *t, const struct gathering *g)
{
    double most = 0.0, least = DBL_MAX, side = (HEIGHT - TOP - BOTTOM) / (g->n_block + 1);
    char note[160];
    for (int32_t a = 0; a < g->n_block; a++)
        for (int32_t b = 0; b < a; b++)
            widen(&least, &most, g->apart[a * g->n_block + b]);
    begin_figure(t, "Distances of blocks of 16 tokens");
    for (int32_t a = 0; a < g->n_block; a++)
        for (int32_t b = 0; b < a; b++) {
            double near =
                most > least ? (most - g->apart[a * g->n_block + b]) / (most - least) : 0.0;
            eval_text_printf(t,
                             "<rect class=\"cell\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" "
                             "height=\"%.2f\" fill-opacity=\"%.2f\"/>",
                             LEFT + b * side, TOP + a * side, side, side, near);
        }
    svg_text(t, LEFT, HEIGHT - BOTTOM + 16.0, "left",
             "blocks from the first on, to the right and down");
    snprintf(note, sizeof(note),
             "Root mean square difference of keys (before rotation) and values, mean over layers: "
             "%.3g (dark) to %.3g.",
             g->n_layer > 0 && g->n_block > 1 ? least / g->n_layer : 0.0,
             g->n_layer > 0 ? most / g->n_layer : 0.0);
    end_figure(t, note);
}

/* The page up to its heading, line by line. */
static const char *const head_html[] = {
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width\">\n<title>pith calibrate ",
    "inspect</title>\n",
    "<style>\n",
    ":root{color-scheme:light dark;--first:#2563eb;--second:#d97706}\n",
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\n",
    "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:1.5rem}\n",
    "figure{margin:0}figcaption{font-weight:600}p{margin:.3rem 0;opacity:.8}svg{width:100%}\n",
    "text{font-size:11px;fill:currentColor}.y{text-anchor:end}.x{text-anchor:middle}\n",
    ".axis{fill:none;stroke:currentColor;opacity:.5}.line{fill:none;stroke-width:1.8}\n",
    ".first circle{fill:var(--first);opacity:.45}.second circle{fill:var(--second);opacity:.45}\n",
    ".first .mean,.line.first{stroke:var(--first)}.second ",
    ".mean,.line.second{stroke:var(--second)}\n",
    ".mean{stroke-width:2.5}.cell{fill:var(--first)}\n",
    "</style></head><body>\n<h1>Queries and keys of "};

static void write_page(const struct gathering *g, const struct session *s, const pith_stats *stats,
                       const char *path)
{
    struct eval_text t = {0};
    pith_error err;
    for (size_t i = 0; i < sizeof(head_html) / sizeof(head_html[0]); i++)
        eval_text_add(&t, head_html[i]);
    svg_escape(&t, g->model.name[0] != '\0' ? g->model.name : "a model");
    eval_text_printf(&t, "</h1>\n<p>%d tokens of a text, read in one pass.</p>\n<main>\n",
                     (int)g->n_token);
    for (int32_t b = 0; b < N_BAND; b++)
        draw_cloud(&t, g, b);
    draw_curve(&t, g, s, stats);
    draw_likeness(&t, g);
    draw_blocks(&t, g);
    eval_text_add(&t, "</main></body></html>\n");
    if (t.failed)
        cli_fail("no memory for a page");
    cli_check(eval_write_file(path, &t, &err), &err);
    eval_text_free(&t);
}

/* The bands that contribute most, as the text of inspect names them. */
static void find_bands(struct gathering *g, const pith_stats *stats)
{
    pith_stats_head h;
    bool known = pith_stats_get_head(stats, g->layer, g->head, &h) == PITH_OK && h.n_query != 0;
    for (int32_t b = 0; b < N_BAND; b++) {
        double most = -1.0;
        g->band[b] = b < g->stats->n_pair ? b : 0;
        for (int32_t f = 0; f < g->stats->n_pair && known; f++) {
            double x = (double)h.abs[f] * (h.key_abs != NULL ? (double)h.key_abs[f] : 1.0);
            if (x > most && (b == 0 || f != g->band[0])) {
                most = x;
                g->band[b] = f;
            }
        }
    }
}

void calibrate_picture(struct session *s, const pith_stats *stats, const int32_t *tokens, int32_t n,
                       int32_t layer, int32_t head, const char *path)
{
    pith_stats_info info;
    pith_error err;
    struct gathering g = {.layer = layer, .head = head, .n_token = n, .n_block = n / BLOCK};
    pith_stats_get_info(stats, &info);
    g.stats = &info;
    g.model = s->info;
    if (info.freq == NULL || 2 * info.n_pair > g.model.head_dim_k)
        cli_fail("%s: it is not said how keys are rotated, so that they cannot be drawn", path);
    find_bands(&g, stats);
    g.q = cli_alloc((size_t)N_BAND * (size_t)n * 2, sizeof(*g.q));
    g.k = cli_alloc((size_t)N_BAND * (size_t)n * 2, sizeof(*g.k));
    g.apart = cli_alloc((size_t)g.n_block * (size_t)g.n_block + 1, sizeof(*g.apart));
    g.flat =
        cli_alloc((size_t)n * (size_t)(g.model.n_head_kv * g.model.head_dim_k), sizeof(*g.flat));
    cli_check(pith_engine_set_tap(s->engine, on_rows, &g, &err), &err);
    cli_check(pith_seq_eval(s->seq, tokens, n, &err), &err);
    cli_check(pith_engine_set_tap(s->engine, NULL, NULL, &err), &err);
    write_page(&g, s, stats, path);
    free(g.q);
    free(g.k);
    free(g.apart);
    free(g.flat);
}
