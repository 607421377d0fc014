/*
 * text_store.c - the database. A session's words are a table of FTS5 of its own, because BM25
 * counts over a table. In a common one the spans of one session would change the ranks of another.
 * Invariant: a row of `span` and the row of its session's word table with the same rowid come and
 * go together.
 *
 * Tables: session (id, name, used), span (id, session, timeline, first, last, layer, score, text,
 * time, sum, maker, vector) and words_N (words) for session N. sum is a hash of session name, range
 * and text, which is checked before a text is given out.
 */
#include "policy/recall/text_store.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/os.h"
#include "file/sum.h"

#define APPLICATION_ID 0x50697468 /* "Pith", in the header of the file */
#define VERSION 1                 /* of the tables */

struct text_store {
    sqlite3 *db; /* owned */
    char *path;  /* owned; "" in memory */
    int64_t ttl;
};

/* ---- SQLite ---- */

/* The failure of the last call on the database, as a status. */
static pith_status fail(const struct text_store *s, pith_error *err)
{
    int code = sqlite3_errcode(s->db);
    pith_status status = PITH_IO;
    if (code == SQLITE_NOMEM)
        status = PITH_NOMEM;
    else if (code == SQLITE_BUSY || code == SQLITE_LOCKED)
        status = PITH_BUSY;
    else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        status = PITH_FORMAT;
    const char *why = status == PITH_BUSY ? "another process has it locked" : sqlite3_errmsg(s->db);
    return pi_fail(err, status, "%s: %s", *s->path != '\0' ? s->path : "the store in memory", why);
}

static pith_status run(const struct text_store *s, const char *sql, pith_error *err)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? PITH_OK : fail(s, err);
}

/* A statement about the words of session `id`, whose %lld it fills; or about none. */
static pith_status prepare(const struct text_store *s, const char *sql, int64_t id,
                           sqlite3_stmt **out, pith_error *err)
{
    char text[512];
    *out = NULL;
    snprintf(text, sizeof(text), sql, (long long)id, (long long)id);
    if (sqlite3_prepare_v2(s->db, text, -1, out, NULL) != SQLITE_OK)
        return fail(s, err);
    return PITH_OK;
}

/* One row of the next; *row false at the end. */
static pith_status step(const struct text_store *s, sqlite3_stmt *q, bool *row, pith_error *err)
{
    int code = sqlite3_step(q);
    *row = code == SQLITE_ROW;
    return code == SQLITE_ROW || code == SQLITE_DONE ? PITH_OK : fail(s, err);
}

/* Runs a statement without rows, whose values are bound, and frees it. */
static pith_status finish(const struct text_store *s, sqlite3_stmt *q, pith_error *err)
{
    bool row;
    pith_status status = step(s, q, &row, err);
    sqlite3_finalize(q);
    return status;
}

static pith_status run_for(const struct text_store *s, const char *sql, int64_t id, pith_error *err)
{
    char text[512];
    snprintf(text, sizeof(text), sql, (long long)id, (long long)id);
    return run(s, text, err);
}

static void bind_text(sqlite3_stmt *q, int i, const char *text)
{
    sqlite3_bind_text64(q, i, text, strlen(text), SQLITE_STATIC, SQLITE_UTF8);
}

/* Ends a transaction: what it did stays, or, where it failed, nothing of it. */
static pith_status end(const struct text_store *s, pith_status status, pith_error *err)
{
    if (status == PITH_OK)
        status = run(s, "COMMIT", err);
    if (status != PITH_OK)
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* ---- opening ---- */

/* Whether the database was made here, or is empty; any other is refused. */
static pith_status judge(const struct text_store *s, bool *empty, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    bool row;
    PI_TRY(prepare(s,
                   "SELECT (SELECT application_id FROM pragma_application_id),"
                   " (SELECT user_version FROM pragma_user_version),"
                   " (SELECT count(*) FROM sqlite_schema)",
                   0, &q, err));
    pith_status status = step(s, q, &row, err);
    int64_t application = 0, version = 0, n_table = 0;
    if (status == PITH_OK) {
        application = sqlite3_column_int64(q, 0);
        version = sqlite3_column_int64(q, 1);
        n_table = sqlite3_column_int64(q, 2);
    }
    sqlite3_finalize(q);
    PI_TRY(status);
    *empty = n_table == 0 && application == 0;
    if (*empty || (application == APPLICATION_ID && version == VERSION))
        return PITH_OK;
    if (application == APPLICATION_ID)
        return pi_fail(err, PITH_UNSUPPORTED, "%s: version %lld of a recall store; this reads %d",
                       s->path, (long long)version, VERSION);
    return pi_fail(err, PITH_FORMAT, "%s: a database, but not a recall store", s->path);
}

/* An empty database gets the tables. */
static pith_status make_tables(const struct text_store *s, pith_error *err)
{
    bool empty;
    PI_TRY(judge(s, &empty, err));
    if (!empty)
        return PITH_OK;
    return run(s,
               "CREATE TABLE session(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
               " used INTEGER NOT NULL);"
               "CREATE TABLE span(id INTEGER PRIMARY KEY, session INTEGER NOT NULL,"
               " timeline TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,"
               " layer INTEGER NOT NULL, score REAL NOT NULL, text TEXT NOT NULL,"
               " time INTEGER NOT NULL, sum INTEGER NOT NULL, maker INTEGER, vector BLOB);"
               "CREATE INDEX span_range ON span(session, first, last);"
               "PRAGMA application_id=1349088360;"
               "PRAGMA user_version=1",
               err);
}

/* Deletes one session, within a transaction. */
static pith_status drop_session(const struct text_store *s, int64_t id, pith_error *err)
{
    PI_TRY(run_for(s, "DROP TABLE IF EXISTS words_%lld", id, err));
    PI_TRY(run_for(s, "DELETE FROM span WHERE session=%lld", id, err));
    return run_for(s, "DELETE FROM session WHERE id=%lld", id, err);
}

/* Deletes sessions that were not used for too long, within a transaction. */
static pith_status drop_idle(const struct text_store *s, int64_t now, pith_error *err)
{
    while (s->ttl > 0) {
        sqlite3_stmt *q = NULL;
        bool row;
        PI_TRY(prepare(s, "SELECT id FROM session WHERE used < ? LIMIT 1", 0, &q, err));
        sqlite3_bind_int64(q, 1, now - s->ttl);
        pith_status status = step(s, q, &row, err);
        int64_t id = status == PITH_OK && row ? sqlite3_column_int64(q, 0) : 0;
        sqlite3_finalize(q);
        PI_TRY(status);
        if (id == 0)
            return PITH_OK;
        PI_TRY(drop_session(s, id, err));
    }
    return PITH_OK;
}

static pith_status open_all(struct text_store *s, int32_t wait_ms, int64_t now, pith_error *err)
{
    if (*s->path != '\0')
        PI_TRY(pi_file_create_private(s->path, err));
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(*s->path != '\0' ? s->path : ":memory:", &s->db, flags, NULL) != SQLITE_OK)
        return s->db != NULL ? fail(s, err) : pi_fail(err, PITH_NOMEM, "no memory for a database");
    sqlite3_busy_timeout(s->db, wait_ms);
    /* Only the statements that are written here run, even where a file's schema has others. Deleted
       rows are overwritten, as they are a person's conversation. */
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, (int *)NULL);
    /* The file of another program stays as it is: it is looked at before anything is set, and what
       waits in its log stays there. */
    bool empty;
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)NULL);
    PI_TRY(judge(s, &empty, err));
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, (int *)NULL);
    if (*s->path == '\0') /* bytes of a conversation come free with it */
        PI_TRY(run(s, "PRAGMA auto_vacuum=FULL", err));
    PI_TRY(run(s,
               "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON;"
               "BEGIN IMMEDIATE",
               err));
    pith_status status = make_tables(s, err);
    if (status == PITH_OK)
        status = drop_idle(s, now, err);
    return end(s, status, err);
}

pith_status text_store_open(const char *path, int64_t ttl, int32_t wait_ms, int64_t now,
                            struct text_store **out, pith_error *err)
{
    struct text_store *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s != NULL)
        s->path = pi_mem_strndup(PI_MEM_OTHER, path, strlen(path));
    if (s == NULL || s->path == NULL) {
        pi_mem_free(s);
        return pi_fail(err, PITH_NOMEM, "no memory for a store of text");
    }
    s->ttl = ttl;
    pith_status status = open_all(s, wait_ms, now, err);
    if (status != PITH_OK) {
        text_store_close(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}

int64_t text_store_bytes(const struct text_store *s)
{
    static const int kinds[] = {SQLITE_DBSTATUS_CACHE_USED, SQLITE_DBSTATUS_SCHEMA_USED,
                                SQLITE_DBSTATUS_STMT_USED};
    int64_t bytes = 0;
    int now, most;
    for (size_t i = 0; i < PI_LEN(kinds); i++)
        if (sqlite3_db_status(s->db, kinds[i], &now, &most, 0) == SQLITE_OK)
            bytes += now;
    return bytes;
}

void text_store_close(struct text_store *s)
{
    if (s == NULL)
        return;
    sqlite3_close(s->db);
    pi_mem_free(s->path);
    pi_mem_free(s);
}

/* ---- sessions ---- */

/* The session's id, 0 where it is not there; it counts as used now. */
static pith_status find_session(const struct text_store *s, const char *name, int64_t now,
                                int64_t *id, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    bool row;
    PI_TRY(prepare(s, "UPDATE session SET used = ? WHERE name = ? RETURNING id", 0, &q, err));
    sqlite3_bind_int64(q, 1, now);
    bind_text(q, 2, name);
    pith_status status = step(s, q, &row, err);
    *id = status == PITH_OK && row ? sqlite3_column_int64(q, 0) : 0;
    if (status == PITH_OK && row) /* the row is written when the statement ends */
        status = step(s, q, &row, err);
    sqlite3_finalize(q);
    return status;
}

static pith_status make_session(const struct text_store *s, const char *name, int64_t now,
                                int64_t *id, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    PI_TRY(find_session(s, name, now, id, err));
    if (*id != 0)
        return PITH_OK;
    PI_TRY(prepare(s, "INSERT INTO session(name, used) VALUES(?, ?)", 0, &q, err));
    bind_text(q, 1, name);
    sqlite3_bind_int64(q, 2, now);
    PI_TRY(finish(s, q, err));
    *id = sqlite3_last_insert_rowid(s->db);
    /* text_words has made letters small and left nothing but letters and spaces. */
    return run_for(s, "CREATE VIRTUAL TABLE words_%lld USING fts5(words, tokenize='ascii')", *id,
                   err);
}

/* The sum that guards a text against being another's, or damaged. */
static int64_t sum_of(const char *session, int32_t first, int32_t last, const char *text)
{
    struct pi_sum hash;
    int32_t range[2] = {first, last};
    pi_sum_start(&hash);
    pi_sum_add(&hash, session, strlen(session) + 1);
    pi_sum_add(&hash, range, sizeof(range));
    pi_sum_add(&hash, text, strlen(text));
    return (int64_t)pi_sum_value(&hash);
}

/* ---- changing ---- */

/* Deletes the spans that a statement with the values (session, first, last, text or timeline)
   selects, and their words. */
static pith_status delete_spans(const struct text_store *s, int64_t session, const char *where,
                                struct text_span span, const char *text, const char *timeline,
                                pith_error *err)
{
    for (;;) {
        char sql[384];
        sqlite3_stmt *q = NULL;
        bool row;
        snprintf(sql, sizeof(sql),
                 "DELETE FROM span WHERE id = (SELECT id FROM span WHERE"
                 " session = ?1 AND %s LIMIT 1) RETURNING id",
                 where);
        PI_TRY(prepare(s, sql, 0, &q, err));
        sqlite3_bind_int64(q, 1, session);
        sqlite3_bind_int64(q, 2, span.first);
        sqlite3_bind_int64(q, 3, span.last);
        bind_text(q, 4, timeline);
        if (text != NULL)
            bind_text(q, 5, text);
        pith_status status = step(s, q, &row, err);
        int64_t id = status == PITH_OK && row ? sqlite3_column_int64(q, 0) : 0;
        if (status == PITH_OK && row)
            status = step(s, q, &row, err);
        sqlite3_finalize(q);
        PI_TRY(status);
        if (id == 0)
            return PITH_OK;
        PI_TRY(prepare(s, "DELETE FROM words_%lld WHERE rowid = ?", session, &q, err));
        sqlite3_bind_int64(q, 1, id);
        PI_TRY(finish(s, q, err));
    }
}

/* Whether another timeline has the text, in the same range or a wider one. */
static pith_status is_there(const struct text_store *s, int64_t session, const char *timeline,
                            const struct text_hit *hit, bool *there, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    PI_TRY(prepare(s,
                   "SELECT 1 FROM span WHERE session = ? AND first <= ? AND last >= ?"
                   " AND timeline <> ? AND instr(text, ?) > 0 LIMIT 1",
                   0, &q, err));
    sqlite3_bind_int64(q, 1, session);
    sqlite3_bind_int64(q, 2, hit->first);
    sqlite3_bind_int64(q, 3, hit->last);
    bind_text(q, 4, timeline);
    bind_text(q, 5, hit->text);
    pith_status status = step(s, q, there, err);
    sqlite3_finalize(q);
    return status;
}

static pith_status insert_words(const struct text_store *s, int64_t session, int64_t id,
                                const char *text, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    char *words = text_words(text, strlen(text));
    if (words == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the words of a span");
    pith_status status =
        prepare(s, "INSERT INTO words_%lld(rowid, words) VALUES(?, ?)", session, &q, err);
    if (status == PITH_OK) {
        sqlite3_bind_int64(q, 1, id);
        bind_text(q, 2, words);
        status = finish(s, q, err);
    }
    pi_mem_free(words);
    return status;
}

static pith_status insert_span(const struct text_store *s, int64_t session,
                               const struct text_change *c, const struct text_hit *hit, int64_t now,
                               pith_error *err)
{
    sqlite3_stmt *q = NULL;
    PI_TRY(prepare(s,
                   "INSERT INTO span(session, timeline, first, last, layer, score, text, time, sum)"
                   " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   0, &q, err));
    sqlite3_bind_int64(q, 1, session);
    bind_text(q, 2, c->timeline);
    sqlite3_bind_int64(q, 3, hit->first);
    sqlite3_bind_int64(q, 4, hit->last);
    sqlite3_bind_int64(q, 5, hit->layer);
    sqlite3_bind_double(q, 6, hit->score);
    bind_text(q, 7, hit->text);
    sqlite3_bind_int64(q, 8, now);
    sqlite3_bind_int64(q, 9, sum_of(c->session, hit->first, hit->last, hit->text));
    PI_TRY(finish(s, q, err));
    return insert_words(s, session, sqlite3_last_insert_rowid(s->db), hit->text, err);
}

static pith_status add_one(const struct text_store *s, int64_t session, const struct text_change *c,
                           const struct text_hit *hit, int64_t now, int32_t *n, pith_error *err)
{
    struct text_span span = {hit->first, hit->last};
    bool there;
    PI_TRY(is_there(s, session, c->timeline, hit, &there, err));
    if (there)
        return PITH_OK;
    PI_TRY(delete_spans(s, session,
                        "first >= ?2 AND last <= ?3 AND timeline <> ?4 AND instr(?5, text) > 0",
                        span, hit->text, c->timeline, err));
    ++*n;
    return insert_span(s, session, c, hit, now, err);
}

pith_status text_store_change(struct text_store *s, const struct text_change *c, int64_t now,
                              int32_t *n_written, pith_error *err)
{
    int64_t session;
    int32_t n = 0;
    PI_TRY(run(s, "BEGIN IMMEDIATE", err));
    pith_status status = drop_idle(s, now, err);
    if (status == PITH_OK)
        status = make_session(s, c->session, now, &session, err);
    for (int32_t i = 0; status == PITH_OK && i < c->n_drop; i++)
        status = delete_spans(s, session, "first = ?2 AND last = ?3 AND timeline = ?4", c->drop[i],
                              NULL, c->timeline, err);
    for (int32_t i = 0; status == PITH_OK && i < c->n_add; i++)
        status = add_one(s, session, c, &c->add[i], now, &n, err);
    PI_TRY(end(s, status, err));
    *n_written = n;
    return PITH_OK;
}

pith_status text_store_forget(struct text_store *s, const char *session, pith_error *err)
{
    int64_t id;
    PI_TRY(run(s, "BEGIN IMMEDIATE", err));
    pith_status status = find_session(s, session, 0, &id, err);
    if (status == PITH_OK && id != 0)
        status = drop_session(s, id, err);
    return end(s, status, err);
}

/* ---- finding ---- */

struct scores {
    struct text_score *item; /* [n], owned */
    int32_t n;
    int32_t cap;
};

static pith_status add_score(struct scores *scores, struct text_score item, pith_error *err)
{
    if (scores->n == scores->cap) {
        int32_t cap = scores->cap > 0 ? 2 * scores->cap : 256;
        struct text_score *grown =
            pi_mem_grow(PI_MEM_OTHER, scores->item, (size_t)cap, sizeof(*grown));
        if (grown == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory for the scores of %d spans", cap);
        scores->item = grown;
        scores->cap = cap;
    }
    scores->item[scores->n++] = item;
    return PITH_OK;
}

/* All spans of the session, ascending by id. */
static pith_status list_scores(const struct text_store *s, int64_t session, struct scores *scores,
                               pith_error *err)
{
    sqlite3_stmt *q = NULL;
    bool row;
    PI_TRY(prepare(s, "SELECT id, first FROM span WHERE session = %lld ORDER BY id", session, &q,
                   err));
    pith_status status = step(s, q, &row, err);
    while (status == PITH_OK && row) {
        struct text_score item = {.id = sqlite3_column_int64(q, 0),
                                  .first = sqlite3_column_int(q, 1)};
        status = add_score(scores, item, err);
        if (status == PITH_OK)
            status = step(s, q, &row, err);
    }
    sqlite3_finalize(q);
    return status;
}

/* BM25 of the texts that the words match. */
static pith_status score_words(const struct text_store *s, int64_t session, const char *query,
                               struct scores *scores, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    bool row = *query != '\0';
    int32_t at = 0;
    if (!row)
        return PITH_OK;
    /* FTS5's is negative, so that the best comes first. */
    PI_TRY(prepare(s,
                   "SELECT rowid, -bm25(words_%lld) FROM words_%lld WHERE words MATCH ?"
                   " ORDER BY rowid",
                   session, &q, err));
    bind_text(q, 1, query);
    pith_status status = step(s, q, &row, err);
    while (status == PITH_OK && row) {
        int64_t id = sqlite3_column_int64(q, 0);
        while (at < scores->n && scores->item[at].id < id)
            at++;
        if (at < scores->n && scores->item[at].id == id) {
            scores->item[at].matched = true;
            scores->item[at].words = sqlite3_column_double(q, 1);
        }
        status = step(s, q, &row, err);
    }
    sqlite3_finalize(q);
    return status;
}

/* Gives a vector to the first span that has none of this model; *more false where all have one. */
static pith_status embed_one(const struct text_store *s, int64_t session, struct text_embed *embed,
                             float *vector, bool *more, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    int64_t id = 0;
    PI_TRY(prepare(s,
                   "SELECT id, text FROM span WHERE session = %lld AND maker IS NOT ?"
                   " ORDER BY id LIMIT 1",
                   session, &q, err));
    sqlite3_bind_int64(q, 1, (int64_t)embed->maker);
    pith_status status = step(s, q, more, err);
    if (status == PITH_OK && *more) {
        id = sqlite3_column_int64(q, 0);
        const char *text = (const char *)sqlite3_column_text(q, 1);
        status = text != NULL
                     ? embed->text(embed, text, (size_t)sqlite3_column_bytes(q, 1), vector, err)
                     : fail(s, err);
    }
    sqlite3_finalize(q);
    if (status != PITH_OK || !*more)
        return status;
    PI_TRY(prepare(s, "UPDATE span SET maker = ?, vector = ? WHERE id = ?", 0, &q, err));
    sqlite3_bind_int64(q, 1, (int64_t)embed->maker);
    sqlite3_bind_blob64(q, 2, vector, (size_t)embed->dim * sizeof(*vector), SQLITE_STATIC);
    sqlite3_bind_int64(q, 3, id);
    return finish(s, q, err);
}

static pith_status score_vectors(const struct text_store *s, int64_t session, int32_t dim,
                                 const float *wanted, struct scores *scores, pith_error *err)
{
    sqlite3_stmt *q = NULL;
    bool row;
    PI_TRY(
        prepare(s, "SELECT vector FROM span WHERE session = %lld ORDER BY id", session, &q, err));
    pith_status status = step(s, q, &row, err);
    for (int32_t i = 0; status == PITH_OK && row && i < scores->n; i++) {
        const uint8_t *bytes = sqlite3_column_blob(q, 0);
        double dot = 0;
        if ((size_t)sqlite3_column_bytes(q, 0) != (size_t)dim * sizeof(float)) {
            status = pi_fail(err, PITH_FORMAT, "%s: a vector that is not one of %d floats", s->path,
                             dim);
            break;
        }
        for (int32_t j = 0; j < dim; j++) {
            float x;
            memcpy(&x, bytes + (size_t)j * sizeof(x), sizeof(x));
            dot += (double)x * wanted[j];
        }
        scores->item[i].cosine = dot;
        status = step(s, q, &row, err);
    }
    sqlite3_finalize(q);
    return status;
}

/* Vectors for all spans of the session that have none of this model. Each is stored as it comes, so
   that a store which others use, too, is not locked while a model works. */
static pith_status embed_all(const struct text_store *s, int64_t session, struct text_embed *embed,
                             pith_error *err)
{
    bool more = true;
    float *vector = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)embed->dim, sizeof(*vector));
    pith_status status =
        vector != NULL ? PITH_OK : pi_fail(err, PITH_NOMEM, "no memory for a vector");
    while (status == PITH_OK && more)
        status = embed_one(s, session, embed, vector, &more, err);
    pi_mem_free(vector);
    return status;
}

/* Cosines of all spans of the session with the question. */
static pith_status score_meaning(const struct text_store *s, int64_t session,
                                 struct text_embed *embed, const char *question, size_t len,
                                 struct scores *scores, pith_error *err)
{
    int32_t dim = embed->dim;
    float *vector = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)dim, sizeof(*vector));
    if (vector == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a vector");
    pith_status status = embed->text(embed, question, len, vector, err);
    if (status == PITH_OK)
        status = score_vectors(s, session, dim, vector, scores, err);
    pi_mem_free(vector);
    return status;
}

/* The row of a statement (first, last, layer, text, sum) as a hit. */
static pith_status read_hit(const struct text_store *s, const char *session, sqlite3_stmt *q,
                            double score, struct text_hits *hits, pith_error *err)
{
    const char *text = (const char *)sqlite3_column_text(q, 3);
    struct text_hit hit = {.first = sqlite3_column_int(q, 0),
                           .last = sqlite3_column_int(q, 1),
                           .layer = sqlite3_column_int(q, 2),
                           .score = score};
    if (text == NULL || sum_of(session, hit.first, hit.last, text) != sqlite3_column_int64(q, 4))
        return pi_fail(err, PITH_FORMAT, "%s: the span of tokens %d..%d is damaged", s->path,
                       hit.first, hit.last);
    hit.text = pi_mem_strndup(PI_MEM_OTHER, text, strlen(text));
    if (hit.text == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for the text of a span");
    return text_hits_add(hits, hit, err);
}

static pith_status read_hits(const struct text_store *s, const char *session,
                             const struct text_score *best, int32_t n, struct text_hits *hits,
                             pith_error *err)
{
    for (int32_t i = 0; i < n; i++) {
        sqlite3_stmt *q = NULL;
        bool row;
        PI_TRY(prepare(s, "SELECT first, last, layer, text, sum FROM span WHERE id = %lld",
                       best[i].id, &q, err));
        pith_status status = step(s, q, &row, err);
        if (status == PITH_OK && row)
            status = read_hit(s, session, q, best[i].score, hits, err);
        sqlite3_finalize(q);
        PI_TRY(status);
    }
    return PITH_OK;
}

/* Within a transaction. */
static pith_status find_in(const struct text_store *s, int64_t id, const char *session,
                           const char *question, size_t len, struct text_embed *embed,
                           const struct text_ranking *ranking, struct text_hits *hits,
                           pith_error *err)
{
    struct scores scores = {0};
    char *query = text_query(question, len);
    pith_status status = query != NULL
                             ? list_scores(s, id, &scores, err)
                             : pi_fail(err, PITH_NOMEM, "no memory for the words of a question");
    if (status == PITH_OK)
        status = score_words(s, id, query, &scores, err);
    if (status == PITH_OK && embed != NULL)
        status = score_meaning(s, id, embed, question, len, &scores, err);
    if (status == PITH_OK) {
        int32_t n = text_rank(scores.item, scores.n, ranking);
        status = read_hits(s, session, scores.item, n, hits, err);
    }
    pi_mem_free(query);
    pi_mem_free(scores.item);
    return status;
}

/* The session's id, 0 where it is not there; idle ones are gone then, and it counts as used. */
static pith_status enter(const struct text_store *s, const char *session, int64_t now, int64_t *id,
                         pith_error *err)
{
    PI_TRY(run(s, "BEGIN IMMEDIATE", err));
    pith_status status = drop_idle(s, now, err);
    if (status == PITH_OK)
        status = find_session(s, session, now, id, err);
    return end(s, status, err);
}

pith_status text_store_find(struct text_store *s, const char *session, const char *question,
                            size_t len, struct text_embed *embed,
                            const struct text_ranking *ranking, int64_t now, struct text_hits *hits,
                            pith_error *err)
{
    struct text_ranking r = *ranking;
    int64_t id = 0;
    r.embedded = embed != NULL;
    PI_TRY(enter(s, session, now, &id, err));
    if (id == 0)
        return PITH_OK;
    if (embed != NULL)
        PI_TRY(embed_all(s, id, embed, err));
    PI_TRY(run(s, "BEGIN", err));
    return end(s, find_in(s, id, session, question, len, embed, &r, hits, err), err);
}

static pith_status list_in(const struct text_store *s, int64_t session, struct text_hits *hits,
                           pith_error *err)
{
    sqlite3_stmt *q = NULL;
    bool row;
    PI_TRY(prepare(s,
                   "SELECT first, last, layer, score FROM span WHERE session = %lld"
                   " ORDER BY first, last, id",
                   session, &q, err));
    pith_status status = step(s, q, &row, err);
    while (status == PITH_OK && row) {
        struct text_hit hit = {.first = sqlite3_column_int(q, 0),
                               .last = sqlite3_column_int(q, 1),
                               .layer = sqlite3_column_int(q, 2),
                               .score = sqlite3_column_double(q, 3)};
        status = text_hits_add(hits, hit, err);
        if (status == PITH_OK)
            status = step(s, q, &row, err);
    }
    sqlite3_finalize(q);
    return status;
}

pith_status text_store_list(struct text_store *s, const char *session, int64_t now,
                            struct text_hits *hits, pith_error *err)
{
    int64_t id = 0;
    PI_TRY(enter(s, session, now, &id, err));
    return id != 0 ? list_in(s, id, hits, err) : PITH_OK;
}

void text_name_fresh(char out[TEXT_NAME_SIZE])
{
    uint8_t bytes[(TEXT_NAME_SIZE - 1) / 2];
    sqlite3_randomness((int)sizeof(bytes), bytes);
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}
