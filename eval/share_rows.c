/*
 * share_rows.c - reads the rows of `pith eval share`. A row is written as it is shown, parts joined
 * by " + ", so that you can type each line of a table.
 */
#include "share.h"

#include <stdlib.h>
#include <string.h>

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "share: no memory for rows");
}

/* ---- parts ---- */

/* The number behind a part's "name=" within a range; false when the part is another. */
static pith_status read_number(const char *row, const char *part, const char *name, double min,
                               double max, double *out, bool *is, pith_error *err)
{
    size_t len = strlen(name);
    *is = strncmp(part, name, len) == 0 && part[len] == '=';
    if (!*is)
        return PITH_OK;
    char *end;
    double value = strtod(part + len + 1, &end);
    if (end == part + len + 1 || *end != '\0' || !(value >= min && value <= max))
        return eval_fail(err, PITH_INVALID, "share: row \"%.80s\": %.40s is not between %g and %g",
                         row, part, min, max);
    *out = value;
    return PITH_OK;
}

/* Whether part is a number of the row, which is then set. */
static pith_status read_count_part(struct share_row *r, const char *part, bool *found,
                                   pith_error *err)
{
    double value = 0.0;
    pith_status status = read_number(r->name, part, "page", 16, 64, &value, found, err);
    if (*found && status == PITH_OK)
        r->page_len = (int32_t)value;
    if (*found)
        return status;
    status = read_number(r->name, part, "reserve", 0, 1, &r->reserve, found, err);
    if (*found)
        return status;
    status = read_number(r->name, part, "step", 1, 8192, &value, found, err);
    if (*found && status == PITH_OK)
        r->step_tokens = (int32_t)value;
    return status;
}

static pith_status set_policy(struct share_row *r, char **policy, const char *verb,
                              const char *part, pith_error *err)
{
    if (*policy != NULL)
        return eval_fail(err, PITH_INVALID,
                         "share: row \"%.80s\": \"%.60s\" is a second policy that %s", r->name,
                         part, verb);
    *policy = eval_copy(part);
    return *policy != NULL ? PITH_OK : no_memory(err);
}

/* Whether part has the name of a keep policy. */
static bool names_keep(const char *part)
{
    pith_policy_info info;
    size_t len = strcspn(part, ":");
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &info) == PITH_OK; i++)
        if (strlen(info.name) == len && memcmp(part, info.name, len) == 0)
            return true;
    return false;
}

/* A name that is a policy of both kinds, as random, is first found for one that shares. */
static pith_status read_policy(struct share_row *r, const char *part, pith_error *err)
{
    pith_error shares, keeps;
    if (pith_policy_check(PITH_SHARE, part, &shares) == PITH_OK)
        return set_policy(r, &r->share, "shares", part, err);
    if (pith_policy_check(PITH_KEEP, part, &keeps) == PITH_OK)
        return set_policy(r, &r->keep, "keeps", part, err);
    return eval_fail(err, PITH_INVALID,
                     "share: row \"%.50s\": \"%.40s\" is no part of a row: %.100s", r->name, part,
                     names_keep(part) ? keeps.message : shares.message);
}

static pith_status read_part(struct share_row *r, const char *part, pith_error *err)
{
    bool found = false;
    if (part[0] == '\0')
        return eval_fail(err, PITH_INVALID, "share: row \"%.80s\" has an empty part", r->name);
    if (strcmp(part, "none") == 0)
        return PITH_OK;
    if (strcmp(part, "prefix") == 0) {
        r->prefix = true;
        return PITH_OK;
    }
    pith_status status = read_count_part(r, part, &found, err);
    return found || status != PITH_OK ? status : read_policy(r, part, err);
}

/* ---- rows ---- */

/* The control without a share of its own takes the pages of the first row before it that is no
   control. */
static pith_status find_match(struct share_rows *rows, int32_t i, pith_error *err)
{
    struct share_row *r = &rows->at[i];
    if (r->share == NULL || strncmp(r->share, "random", 6) != 0 ||
        strstr(r->share, "share=") != NULL)
        return PITH_OK;
    for (int32_t j = 0; j < i && r->match < 0; j++)
        if (rows->at[j].share != NULL && strncmp(rows->at[j].share, "random", 6) != 0)
            r->match = j;
    if (r->match < 0)
        return eval_fail(err, PITH_INVALID,
                         "share: row \"%.60s\" has no row with a policy that shares before it, "
                         "whose share it could take: random:share=X says one",
                         r->name);
    return PITH_OK;
}

static pith_status parse_row(const char *text, struct share_row *r, pith_error *err)
{
    *r = (struct share_row){.name = eval_copy(text), .reserve = -1.0, .match = -1};
    char *parts = eval_copy(text);
    pith_status status = r->name != NULL && parts != NULL ? PITH_OK : no_memory(err);
    for (char *part = parts; part != NULL && status == PITH_OK;) {
        char *end = strstr(part, " + ");
        if (end != NULL)
            *end = '\0';
        status = read_part(r, part, err);
        part = end != NULL ? end + 3 : NULL;
    }
    free(parts);
    return status;
}

pith_status share_rows_parse(const char *const *texts, int32_t n, struct share_rows *out,
                             pith_error *err)
{
    *out = (struct share_rows){.at = calloc((size_t)n, sizeof(*out->at))};
    if (out->at == NULL)
        return no_memory(err);
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < n && status == PITH_OK; i++) {
        out->n = i + 1;
        status = parse_row(texts[i], &out->at[i], err);
        if (status == PITH_OK)
            status = find_match(out, i, err);
    }
    return status;
}

void share_rows_free(struct share_rows *rows)
{
    for (int32_t i = 0; i < rows->n; i++) {
        free(rows->at[i].name);
        free(rows->at[i].share);
        free(rows->at[i].keep);
    }
    free(rows->at);
    *rows = (struct share_rows){0};
}

pith_status share_row_set_chance(struct share_row *row, double share, pith_error *err)
{
    struct eval_text t = {0};
    eval_text_printf(&t, "%s%cshare=%.4f", row->share, strchr(row->share, ':') != NULL ? ',' : ':',
                     share < 1.0 ? share : 1.0);
    if (t.failed) {
        eval_text_free(&t);
        return no_memory(err);
    }
    free(row->share);
    row->share = t.data;
    row->match = -1;
    return PITH_OK;
}
