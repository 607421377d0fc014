/*
 * stats.c - calibration statistics in memory: what they must be to be used, whose they are, and
 * what they say about a model. Files are stats_file.c's and stats_tria.c's,
 * importance is stats_importance.c's; how they come about is calibrate.c's. Invariant: what
 * stats_check accepted is finite and has R in [0, 1].
 */
#include "policy/keep/stats/stats.h"

#include <math.h>

#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "file/sum.h"
#include "model/shape.h"

/* |mean| may exceed the mean of |.| by what sums of single precision over many tokens lose. The
   files that exist stay below a tenth of it. */
#define R_TOLERANCE 1e-3

/* As much the shares of up to 1,024 centres, each rounded, may miss 1 by. */
#define SHARE_TOLERANCE 1e-3

struct stats_row stats_row_at(const struct pith_stats *s, const float *rows, size_t i)
{
    const float *row = rows + i * stats_row_len(s);
    return (struct stats_row){row, row + s->n_pair, row + 2 * (size_t)s->n_pair,
                              row + 3 * (size_t)s->n_pair};
}

struct stats_row stats_centre(const struct pith_stats *s, int32_t layer, int32_t head, int32_t c)
{
    size_t i = (size_t)layer * (size_t)s->n_head + (size_t)head;
    if (s->centre == NULL)
        return stats_row_at(s, s->q, i);
    return stats_row_at(s, s->centre, i * (size_t)s->n_centre + (size_t)c);
}

static double mean_modulus(const struct stats_row *row, int32_t f)
{
    return hypot((double)row->re[f], (double)row->im[f]);
}

double stats_resultant(const struct stats_row *row, int32_t f)
{
    double r = row->abs[f] > 0.0f ? mean_modulus(row, f) / (double)row->abs[f] : 0.0;
    return r < 1.0 ? r : 1.0;
}

void stats_add(const struct pi_rope *rope, int32_t n_flat, const float *x, double *sum)
{
    int32_t n = rope->n_pair;
    for (int32_t f = 0; f < n; f++) {
        double a = (double)x[rope->adjacent ? 2 * f : f];
        double b = (double)x[rope->adjacent ? 2 * f + 1 : n + f];
        sum[f] += a;
        sum[n + f] += b;
        sum[2 * n + f] += sqrt(a * a + b * b);
    }
    for (int32_t i = 0; i < n_flat; i++)
        sum[3 * n + i] += (double)x[2 * n + i];
}

/* ---- objects ---- */

pith_status stats_new(struct pith_stats **out, pith_error *err)
{
    struct pith_stats *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for calibration statistics");
    s->n_centre = 1;
    s->magnitude = 1.0f;
    *out = s;
    return PITH_OK;
}

pith_status stats_alloc(struct pith_stats *s, bool has_freq, bool has_k, pith_error *err)
{
    size_t row = stats_row_len(s), n_lane = (size_t)s->n_layer * (size_t)s->n_head;
    size_t n_kv = (size_t)s->n_layer * (size_t)s->n_head_kv, n_centre = (size_t)s->n_centre;
    s->count = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->n_layer, sizeof(*s->count));
    s->q = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * row, sizeof(float));
    if (has_freq)
        s->freq = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->n_pair, sizeof(double));
    if (has_k)
        s->k = pi_mem_alloc_n(PI_MEM_OTHER, n_kv * row, sizeof(float));
    if (n_centre > 1) {
        s->centre = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * n_centre * row, sizeof(float));
        s->weight = pi_mem_alloc_n(PI_MEM_OTHER, n_lane * n_centre, sizeof(float));
    }
    if (s->n_range > 0)
        s->range = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)s->n_range, sizeof(*s->range));
    bool ok = s->count != NULL && s->q != NULL && (!has_freq || s->freq != NULL) &&
              (!has_k || s->k != NULL) && (n_centre < 2 || (s->centre && s->weight)) &&
              (s->n_range == 0 || s->range != NULL);
    return ok ? PITH_OK
              : pi_fail(err, PITH_NOMEM,
                        "no memory for the statistics of %d layers, %d heads and %d centres",
                        s->n_layer, s->n_head, s->n_centre);
}

void pith_stats_free(pith_stats *s)
{
    if (s == NULL)
        return;
    pi_mem_free(s->model);
    pi_mem_free(s->text);
    pi_mem_free(s->freq);
    pi_mem_free(s->count);
    pi_mem_free(s->range);
    pi_mem_free(s->q);
    pi_mem_free(s->k);
    pi_mem_free(s->centre);
    pi_mem_free(s->weight);
    stats_importance_free(s->importance);
    pi_mem_free(s);
}

/* ---- checks ---- */

pith_status stats_check_shape(const struct pith_stats *s, pith_error *err)
{
    const struct {
        const char *name;
        int32_t value, min, max;
    } field[] = {
        {"layers", s->n_layer, 1, STATS_MAX_LAYER},
        {"query heads", s->n_head, 1, STATS_MAX_HEAD},
        {"KV heads", s->n_head_kv, 0, s->n_head},
        {"bands", s->n_pair, 1, STATS_MAX_PAIR},
        {"unrotated dimensions", s->n_flat, 0, STATS_MAX_FLAT},
        {"centres", s->n_centre, 1, STATS_MAX_CENTRE},
        {"ranges", s->n_range, 0, STATS_MAX_RANGE},
    };
    for (size_t i = 0; i < PI_LEN(field); i++)
        if (field[i].value < field[i].min || field[i].value > field[i].max)
            return pi_fail(err, PITH_FORMAT, "%s: %d is not in %d..%d", field[i].name,
                           field[i].value, field[i].min, field[i].max);
    if (s->n_head_kv > 0 && s->n_head % s->n_head_kv != 0)
        return pi_fail(err, PITH_FORMAT, "%d query heads do not share %d KV heads evenly",
                       s->n_head, s->n_head_kv);
    return PITH_OK;
}

static bool all_zero(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != 0.0f)
            return false;
    return true;
}

/* One row; what names it in the sentence. A head of keys is a KV head. */
static pith_status check_row(const struct pith_stats *s, const float *row, const char *what,
                             int32_t layer, int32_t head, pith_error *err)
{
    struct stats_row r = stats_row_at(s, row, 0);
    for (size_t i = 0; i < stats_row_len(s); i++)
        if (!isfinite(row[i]))
            return pi_fail(err, PITH_FORMAT, "layer %d, head %d: a mean of the %s is no number",
                           layer, head, what);
    for (int32_t f = 0; f < s->n_pair; f++) {
        double mean = mean_modulus(&r, f), modulus = (double)r.abs[f];
        if (modulus < 0.0 || mean > modulus * (1.0 + R_TOLERANCE) + 1e-30)
            return pi_fail(err, PITH_FORMAT,
                           "layer %d, head %d, band %d of the %s: the mean's modulus %g over the "
                           "mean modulus %g is no R in 0..1",
                           layer, head, f, what, mean, modulus);
    }
    return PITH_OK;
}

static pith_status check_centres(const struct pith_stats *s, int32_t l, int32_t h, pith_error *err)
{
    size_t row = stats_row_len(s), n_centre = (size_t)s->n_centre;
    size_t i = (size_t)l * (size_t)s->n_head + (size_t)h;
    double sum = 0.0;
    for (size_t c = 0; c < n_centre; c++) {
        float w = s->weight[i * n_centre + c];
        PI_TRY(check_row(s, s->centre + (i * n_centre + c) * row, "centres", l, h, err));
        if (!(w >= 0.0f && w <= 1.0f))
            return pi_fail(err, PITH_FORMAT,
                           "layer %d, head %d: the share %g of a centre is not in 0..1", l, h,
                           (double)w);
        sum += (double)w;
    }
    if (s->count[l] != 0 && fabs(sum - 1.0) > SHARE_TOLERANCE)
        return pi_fail(err, PITH_FORMAT,
                       "layer %d, head %d: the shares of the centres are %g together, not 1", l, h,
                       sum);
    return PITH_OK;
}

static pith_status check_layer(const struct pith_stats *s, int32_t l, pith_error *err)
{
    size_t row = stats_row_len(s);
    for (int32_t h = 0; h < s->n_head; h++) {
        size_t i = (size_t)l * (size_t)s->n_head + (size_t)h;
        PI_TRY(check_row(s, s->q + i * row, "queries", l, h, err));
        if (s->centre != NULL)
            PI_TRY(check_centres(s, l, h, err));
    }
    for (int32_t h = 0; s->k != NULL && h < s->n_head_kv; h++)
        PI_TRY(check_row(s, s->k + ((size_t)l * (size_t)s->n_head_kv + (size_t)h) * row, "keys", l,
                         h, err));
    return PITH_OK;
}

pith_status stats_check(struct pith_stats *s, pith_error *err)
{
    size_t lane = (size_t)s->n_head * stats_row_len(s);
    int32_t n_present = 0;
    if (!(isfinite(s->magnitude) && s->magnitude > 0.0f))
        return pi_fail(err, PITH_FORMAT, "magnitude: %g is not above 0", (double)s->magnitude);
    for (int32_t f = 0; s->freq != NULL && f < s->n_pair; f++)
        if (!(s->freq[f] >= 0.0 && s->freq[f] <= 1e3))
            return pi_fail(err, PITH_FORMAT, "band %d: %g radians per position are not in 0..1000",
                           f, s->freq[f]);
    for (int32_t l = 0; l < s->n_layer; l++) {
        if (s->count[l] < -1)
            return pi_fail(err, PITH_FORMAT, "layer %d: %lld queries are not possible", l,
                           (long long)s->count[l]);
        if (all_zero(s->q + (size_t)l * lane, lane))
            s->count[l] = 0;
        if (s->count[l] != 0)
            n_present++;
        PI_TRY(check_layer(s, l, err));
    }
    if (n_present == 0)
        return pi_fail(err, PITH_FORMAT, "none of the %d layers has statistics", s->n_layer);
    return s->importance != NULL ? stats_importance_check(s->importance, s, err) : PITH_OK;
}

/* ---- whose they are ---- */

static pith_status check_count(const char *what, int32_t have, int32_t want, const char *model,
                               pith_error *err)
{
    if (have != want)
        return pi_fail(err, PITH_INVALID,
                       "the statistics have %d %s, the model %.60s has %d: they are of another "
                       "model",
                       have, what, model, want);
    return PITH_OK;
}

pith_status pith_stats_check(const pith_stats *s, const pith_model *m, pith_error *err)
{
    if (s == NULL || m == NULL)
        return pi_fail(err, PITH_INVALID, "pith_stats_check: stats and model must not be NULL");
    const struct pi_hparams *hp = pi_model_hparams(m);
    const char *name = pi_model_name(m);
    /* Lanes that every rank holds are of all ranks' query heads. */
    int32_t n_head = hp->n_head_kv == hp->whole.n_head_kv ? hp->whole.n_head : hp->n_head;
    PI_TRY(check_count("layers", s->n_layer, hp->n_layer_full, name, err));
    PI_TRY(check_count("query heads", s->n_head, n_head, name, err));
    PI_TRY(check_count("rotated pairs", s->n_pair, pi_model_rope(m)->n_pair, name, err));
    /* A converter that does not know the KV heads writes as many as there are query heads. */
    if (s->n_head_kv > 0 && s->n_head_kv != s->n_head)
        PI_TRY(check_count("KV heads", s->n_head_kv, hp->n_head_kv, name, err));
    if (s->n_flat > 0)
        PI_TRY(check_count("unrotated dimensions", s->n_flat, hp->dim_k - hp->n_rot, name, err));
    if (s->fingerprint != 0 && pi_model_has_layers(m) && s->fingerprint != pi_model_fingerprint(m))
        return pi_fail(err, PITH_INVALID,
                       "the statistics are of \"%.60s\", whose fingerprint %016llx is not %016llx, "
                       "that of %.60s",
                       s->model != NULL ? s->model : "", (unsigned long long)s->fingerprint,
                       (unsigned long long)pi_model_fingerprint(m), name);
    return PITH_OK;
}

pith_status stats_check_lanes(const struct pith_stats *s, const struct policy_model *m,
                              const char *who, pith_error *err)
{
    int32_t n_head = m->g.n_head * m->n_group, n_flat = m->g.dim_k - 2 * m->rope->n_pair;
    if (m->model != NULL)
        PI_TRY(pith_stats_check(s, m->model, err));
    if (s->n_layer != m->g.n_layer || s->n_head != n_head || s->n_pair != m->rope->n_pair)
        return pi_fail(err, PITH_INVALID,
                       "%sthe statistics are of %d layers, %d query heads and %d rotated pairs; "
                       "the cache has %d, %d and %d",
                       who, s->n_layer, s->n_head, s->n_pair, m->g.n_layer, n_head,
                       m->rope->n_pair);
    if (s->n_flat > 0 && s->n_flat != n_flat)
        return pi_fail(err, PITH_INVALID,
                       "%sthe statistics hold %d dimensions that are not rotated; a key of the "
                       "cache has %d",
                       who, s->n_flat, n_flat);
    return PITH_OK;
}

void pith_stats_get_info(const pith_stats *s, pith_stats_info *out)
{
    *out = (pith_stats_info){
        .format = s->format,
        .model = s->model != NULL ? s->model : "",
        .text = s->text != NULL ? s->text : "",
        .fingerprint = s->fingerprint,
        .n_token = s->n_token,
        .select = s->select,
        .range = s->range,
        .n_range = s->n_range,
        .n_layer = s->n_layer,
        .n_head = s->n_head,
        .n_head_kv = s->n_head_kv,
        .n_pair = s->n_pair,
        .n_centre = s->n_centre,
        .pairing = s->pairing,
        .freq = s->freq,
        .has_keys = s->k != NULL,
    };
}

pith_status pith_stats_get_head(const pith_stats *s, int32_t layer, int32_t head,
                                pith_stats_head *out)
{
    if (layer < 0 || layer >= s->n_layer || head < 0 || head >= s->n_head)
        return PITH_NOT_FOUND;
    struct stats_row q = stats_q(s, layer, head);
    size_t i = (size_t)layer * (size_t)s->n_head + (size_t)head;
    *out = (pith_stats_head){
        .n_query = s->count[layer],
        .re = q.re,
        .im = q.im,
        .abs = q.abs,
        .weight = s->weight != NULL ? s->weight + i * (size_t)s->n_centre : NULL,
        .key_abs = s->k != NULL ? stats_k(s, layer, head).abs : NULL,
    };
    return PITH_OK;
}

/* ---- files ---- */

pith_status stats_parse(const uint8_t *data, size_t size, struct pith_stats **out, pith_error *err)
{
    if (size >= 8 && memcmp(data, "PITHSTAT", 8) == 0)
        return stats_parse_own(data, size, out, err);
    if (size >= 4 && memcmp(data, "AIRT", 4) == 0)
        return stats_parse_tria(data, size, out, err);
    if (size >= 4 && memcmp(data, "PK\3\4", 4) == 0)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "it is a PyTorch archive; scripts/stats_from_pt.py FILE.pt FILE.stats makes "
                       "Pith's statistics of it");
    return pi_fail(err, PITH_FORMAT,
                   "it begins like none of the files of statistics that Pith reads: its own and "
                   "TRIA");
}

pith_status pith_stats_load(const char *path, pith_stats **out, pith_error *err)
{
    struct pi_file file = {0};
    pith_error why;
    if (path == NULL || out == NULL)
        return pi_fail(err, PITH_INVALID, "pith_stats_load: path and out must not be NULL");
    PI_TRY(pi_file_map(path, &file, err));
    pith_status status = stats_parse(file.data, file.size, out, &why);
    pi_file_unmap(&file);
    return status == PITH_OK ? PITH_OK : pi_file_fail(path, status, &why, err);
}

pith_status stats_load_option(const char *verb, const char *path, pith_stats **out, pith_error *err)
{
    pith_error why;
    pith_status status = pith_stats_load(path, out, &why);
    return status == PITH_OK ? PITH_OK : pi_fail(err, status, "%s: stats: %s", verb, why.message);
}

pith_status pith_stats_save(const pith_stats *s, const char *path, pith_error *err)
{
    uint8_t *data = NULL;
    size_t size = 0;
    if (s == NULL || path == NULL)
        return pi_fail(err, PITH_INVALID, "pith_stats_save: stats and path must not be NULL");
    PI_TRY(stats_format(s, &data, &size, err));
    pith_status status = pi_new_file_save(path, data, size, err);
    pi_mem_free(data);
    return status;
}

/* ---- what statistics say ---- */

double stats_predict(const struct stats_row *q, const struct stats_row *k, const double *freq,
                     int32_t n_pair, int32_t n_flat, double distance)
{
    double sum = 0.0;
    for (int32_t f = 0; f < n_pair; f++) {
        /* q conj(k) exp(i freq distance), real part. */
        double a = (double)q->re[f], b = (double)q->im[f];
        double c = (double)k->re[f], d = (double)k->im[f];
        double angle = freq[f] * distance;
        sum += (a * c + b * d) * cos(angle) - (b * c - a * d) * sin(angle);
    }
    for (int32_t i = 0; i < n_flat; i++)
        sum += (double)q->flat[i] * (double)k->flat[i];
    return sum;
}

double stats_correlate(const double *x, const double *y, int32_t n)
{
    double mx = 0.0, my = 0.0, xx = 0.0, yy = 0.0, xy = 0.0;
    for (int32_t i = 0; i < n; i++) {
        mx += x[i] / n;
        my += y[i] / n;
    }
    for (int32_t i = 0; i < n; i++) {
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        xy += (x[i] - mx) * (y[i] - my);
    }
    double scale = sqrt(xx) * sqrt(yy);
    return scale > 0.0 ? xy / scale : 0.0;
}

void stats_dominant(const struct stats_row *q, const struct stats_row *k, int32_t n_pair,
                    int32_t *order)
{
    /* Insertion: a head has some tens of bands, and equal ones stay in their order. */
    for (int32_t f = 0; f < n_pair; f++) {
        double value = (double)q->abs[f] * (k != NULL ? (double)k->abs[f] : 1.0);
        int32_t at = f;
        for (; at > 0; at--) {
            int32_t g = order[at - 1];
            if ((double)q->abs[g] * (k != NULL ? (double)k->abs[g] : 1.0) >= value)
                break;
            order[at] = g;
        }
        order[at] = f;
    }
}
