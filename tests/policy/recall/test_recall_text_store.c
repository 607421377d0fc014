/*
 * The store of recall as text: sessions that are strictly separate, BM25 against a second
 * implementation, spans that grow, and time to live. Also every fault of a file: killed writers,
 * locks, missing folders, other files, damage, a full disk. It also tests the pure parts below it:
 * words, ranks, the message.
 */
#define _GNU_SOURCE

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "folder.h"
#include "policy/recall/text_store.h"
#include "testing.h"

TEST_GROUP(make_folder, remove_folder);

#define NOW 1000000
#define TTL 1800

static const struct text_ranking ten = {.top = 10};

static struct text_store *open_store(const char *path, int64_t now)
{
    struct text_store *s = NULL;
    check(text_store_open(path, TTL, 50, now, &s, &err), &err);
    return s;
}

static int32_t put_as(struct text_store *s, const char *session, const char *timeline,
                      int32_t first, int32_t last, const char *text, int64_t now)
{
    struct text_hit hit = {.first = first, .last = last, .layer = -1, .text = (char *)text};
    struct text_change c = {.session = session, .timeline = timeline, .add = &hit, .n_add = 1};
    int32_t n = -1;
    check(text_store_change(s, &c, now, &n, &err), &err);
    return n;
}

static void put(struct text_store *s, const char *session, int32_t first, const char *text)
{
    assert_int_equal(put_as(s, session, session, first, first + 10, text, NOW), 1);
}

static struct text_hits find_at(struct text_store *s, const char *session, const char *question,
                                const struct text_ranking *ranking, int64_t now)
{
    struct text_hits hits = {0};
    check(text_store_find(s, session, question, strlen(question), NULL, ranking, now, &hits, &err),
          &err);
    return hits;
}

static struct text_hits find(struct text_store *s, const char *session, const char *question)
{
    return find_at(s, session, question, &ten, NOW);
}

/* Asserts the first tokens of the found spans, in order, as text. */
static void expect_found(struct text_store *s, const char *session, const char *question,
                         const char *wanted)
{
    char found[256] = "";
    struct text_hits hits = find(s, session, question);
    for (int32_t i = 0; i < hits.n; i++)
        snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s%d", i > 0 ? " " : "",
                 hits.hit[i].first);
    text_hits_free(&hits);
    assert_string_equal(found, wanted);
}

static int32_t count_spans(struct text_store *s, const char *session)
{
    struct text_hits hits = {0};
    check(text_store_list(s, session, NOW, &hits, &err), &err);
    int32_t n = hits.n;
    text_hits_free(&hits);
    return n;
}

/* ---- finding ---- */

static const char *const texts[] = {
    "The mayor of Ostrava keeps a red bicycle in the cellar.",
    "A recipe for soup: onions, carrots, and more onions than carrots, onions again.",
    "The secret code word is PURPLE ELEPHANT 7742.",
    "In the cellar there are carrots and a bicycle without wheels, red once.",
    "Weather: rain.",
};
#define N_TEXT ((int32_t)PI_LEN(texts))

static int32_t count_word(const char *words, const char *word)
{
    char inside[64];
    int32_t n = 0;
    size_t len = (size_t)snprintf(inside, sizeof(inside), " %s ", word);
    char all[512];
    snprintf(all, sizeof(all), " %s", words);
    for (const char *p = all; (p = strstr(p, inside)) != NULL; p += len - 1)
        n++;
    return n;
}

static int32_t count_words(const char *words)
{
    int32_t n = 0;
    for (; *words != '\0'; words++)
        n += *words == ' ';
    return n;
}

/* BM25 with k1 = 1.2 and b = 0.75, and idf = max(1e-6, log((N - n + 0.5) / (n + 0.5))), as the
   documentation of FTS5 has it. */
static double bm25(int32_t doc, const char *const *question, int32_t n_question)
{
    char *words[PI_LEN(texts)];
    double mean = 0, score = 0;
    for (int32_t i = 0; i < N_TEXT; i++) {
        words[i] = text_words(texts[i], strlen(texts[i]));
        mean += count_words(words[i]) / (double)N_TEXT;
    }
    for (int32_t k = 0; k < n_question; k++) {
        int32_t n = 0;
        for (int32_t i = 0; i < N_TEXT; i++)
            n += count_word(words[i], question[k]) > 0;
        double idf = log((N_TEXT - n + 0.5) / (n + 0.5));
        double f = count_word(words[doc], question[k]);
        double len = count_words(words[doc]);
        score += fmax(1e-6, idf) * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * len / mean));
    }
    for (int32_t i = 0; i < N_TEXT; i++)
        pi_mem_free(words[i]);
    return score;
}

static void put_texts(struct text_store *s, const char *session)
{
    for (int32_t i = 0; i < N_TEXT; i++)
        put(s, session, 100 * i, texts[i]);
}

static void check_scores(struct text_store *s, const char *session)
{
    static const char *const question[] = {"red", "bicycle", "carrots", "code"};
    double score[PI_LEN(texts)], max = 0;
    struct text_hits hits = find(s, session, "Red BICYCLE? carrots; code");
    for (int32_t i = 0; i < N_TEXT; i++) {
        score[i] = bm25(i, question, 4);
        max = fmax(max, score[i]);
    }
    assert_int_equal(hits.n, 4);
    for (int32_t i = 0; i < hits.n; i++) {
        double wanted = score[hits.hit[i].first / 100] / max; /* "Weather" has 0 */
        if (fabs(hits.hit[i].score - wanted) > 1e-9)
            fail_msg("span %d: %.12f instead of %.12f", hits.hit[i].first, hits.hit[i].score,
                     wanted);
        assert_true(i == 0 || hits.hit[i].score <= hits.hit[i - 1].score);
        assert_string_equal(hits.hit[i].text, texts[hits.hit[i].first / 100]);
        assert_int_equal(hits.hit[i].layer, -1);
    }
    text_hits_free(&hits);
}

TEST(query_is_bounded)
{
    static char text[40000];
    size_t n = 0;
    int32_t n_word = 0;
    for (int32_t i = 0; i < 5000; i++)
        n += (size_t)sprintf(text + n, "w%d ", i % 1000);
    char *query = text_query(text, n);
    for (const char *p = query; (p = strstr(p, "\"w")) != NULL; p++)
        n_word++;
    assert_int_equal(n_word, TEXT_QUERY_WORDS);
    assert_non_null(strstr(query, "\"w255\""));
    assert_null(strstr(query, "\"w256\""));
    struct text_store *s = open_store("", NOW);
    put(s, "a", 0, "w7 and w300");
    struct text_hits hits = {0};
    check(text_store_find(s, "a", text, n, NULL, &ten, NOW, &hits, &err), &err);
    assert_int_equal(hits.n, 1);
    text_hits_free(&hits);
    text_store_close(s);
    pi_mem_free(query);
}

TEST(ranks_by_bm25)
{
    struct text_store *s = open_store("", NOW);
    put_texts(s, "a");
    check_scores(s, "a");
    expect_found(s, "a", "what is the secret CODE word", "200 0 300");
    expect_found(s, "a", "nobody wrote this", "");
    expect_found(s, "a", "", "");
    expect_found(s, "b", "code", "");
    text_store_close(s);
}

TEST(sessions_are_separate)
{
    struct text_store *s = open_store("", NOW);
    put_texts(s, "a");
    /* Other sessions' words would change which words are rare, how long a span is, and the
       result. */
    for (int32_t i = 0; i < 50; i++) {
        put(s, "b", 10 * i, "red bicycle bicycle code");
        put(s, "a ", 10 * i, "carrots");
    }
    check_scores(s, "a");
    expect_found(s, "a'; DROP TABLE span; --", "code", "");
    put(s, "a'; DROP TABLE span; --", 5, "quoted code");
    expect_found(s, "a'; DROP TABLE span; --", "code", "5");
    check(text_store_forget(s, "b", &err), &err);
    check(text_store_forget(s, "never was", &err), &err);
    assert_int_equal(count_spans(s, "b"), 0);
    expect_found(s, "b", "bicycle", "");
    check_scores(s, "a");
    text_store_close(s);
}

TEST(any_bytes_may_ask)
{
    struct text_store *s = open_store("", NOW);
    uint64_t seed = 4;
    put_texts(s, "a");
    static const char marks[] = "\"'*^:(){}[]+-~|\\/;,. NEAR AND OR NOT ab\x80\xe7\xff";
    for (int32_t i = 0; i < 3000; i++) {
        char question[64];
        size_t n = rng_below(&seed, sizeof(question));
        for (size_t k = 0; k < n; k++)
            question[k] =
                i % 2 == 0 ? (char)rng_next(&seed) : marks[rng_below(&seed, sizeof(marks) - 1)];
        struct text_hits hits = {0};
        check(text_store_find(s, "a", question, n, NULL, &ten, NOW, &hits, &err), &err);
        text_hits_free(&hits);
    }
    text_store_close(s);
}

/* ---- spans that grow ---- */

TEST(a_span_that_grows_replaces_the_old_one)
{
    struct text_store *s = open_store("", NOW);
    struct text_hit grown = {.first = 90, .last = 130, .layer = -1, .text = (char *)"big red code"};
    struct text_span old = {100, 110};
    struct text_change c = {
        .session = "a", .timeline = "a", .add = &grown, .n_add = 1, .drop = &old, .n_drop = 1};
    int32_t n;
    put_texts(s, "a");
    check(text_store_change(s, &c, NOW, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_int_equal(count_spans(s, "a"), N_TEXT);
    expect_found(s, "a", "onions", ""); /* its words are gone, too */
    expect_found(s, "a", "big", "90");
    c.n_add = 0; /* dropping an absent span is no error */
    check(text_store_change(s, &c, NOW, &n, &err), &err);
    assert_int_equal(count_spans(s, "a"), N_TEXT);
    c.timeline = "another"; /* whose span this is not */
    old = (struct text_span){90, 130};
    check(text_store_change(s, &c, NOW, &n, &err), &err);
    assert_int_equal(count_spans(s, "a"), N_TEXT);
    text_store_close(s);
}

TEST(knows_what_earlier_timelines_stored)
{
    struct text_store *s = open_store("", NOW);
    assert_int_equal(put_as(s, "a", "1", 100, 200, "one two three four", NOW), 1);
    assert_int_equal(put_as(s, "a", "2", 100, 200, "one two three four", NOW), 0); /* read again */
    assert_int_equal(put_as(s, "a", "2", 110, 150, "two three", NOW), 0);
    assert_int_equal(put_as(s, "a", "2", 110, 150, "another text", NOW), 1); /* of another talk */
    assert_int_equal(put_as(s, "a", "2", 90, 150, "one two", NOW), 1);       /* not inside */
    assert_int_equal(count_spans(s, "a"), 3);
    assert_int_equal(put_as(s, "a", "3", 90, 210, "zero one two three four five", NOW), 1);
    assert_int_equal(count_spans(s, "a"), 2); /* "another text" is in no other */
    expect_found(s, "a", "another", "110");
    expect_found(s, "a", "two", "90");
    assert_int_equal(put_as(s, "b", "1", 100, 200, "one two three four", NOW), 1);
    text_store_close(s);
}

/* ---- time ---- */

TEST(drops_what_is_too_old)
{
    const char *path = in_folder("ttl.db");
    struct text_store *s = open_store(path, NOW);
    struct text_hits hits;
    assert_int_equal(put_as(s, "old", "1", 0, 10, "a code", NOW), 1);
    assert_int_equal(put_as(s, "used", "1", 0, 10, "a code", NOW), 1);
    hits = find_at(s, "used", "code", &ten, NOW + 1000);
    assert_int_equal(hits.n, 1);
    text_hits_free(&hits);
    hits = find_at(s, "used", "code", &ten, NOW + TTL + 1); /* "old" goes */
    assert_int_equal(hits.n, 1);
    text_hits_free(&hits);
    hits = find_at(s, "old", "code", &ten, NOW + TTL + 1);
    assert_int_equal(hits.n, 0);
    text_hits_free(&hits);
    text_store_close(s);
    s = open_store(path, NOW + TTL + 1000);
    assert_int_equal(count_spans(s, "used"), 1);
    text_store_close(s);
    s = open_store(path, NOW + 3 * TTL); /* on opening, too */
    hits = find_at(s, "used", "code", &ten, NOW);
    assert_int_equal(hits.n, 0);
    text_hits_free(&hits);
    text_store_close(s);
    /* Not even its letters stay in the file. */
    char line[256];
    snprintf(line, sizeof(line), "grep -c 'a code' '%s' '%s-wal' 2>/dev/null | grep -q ':[1-9]'",
             path, path);
    assert_int_not_equal(system(line), 0);
    check(text_store_open(path, 0, 50, NOW, &s, &err), &err); /* for ever */
    assert_int_equal(put_as(s, "old", "1", 0, 10, "a code", 5), 1);
    hits = find_at(s, "old", "code", &ten, NOW * (int64_t)1000);
    assert_int_equal(hits.n, 1);
    text_hits_free(&hits);
    text_store_close(s);
}

/* ---- files ---- */

TEST(survives_a_restart)
{
    const char *path = in_folder("restart.db");
    struct text_store *s = open_store(path, NOW);
    struct stat st;
    put_texts(s, "a");
    text_store_close(s);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    s = open_store(path, NOW);
    check_scores(s, "a");
    struct text_store *other = open_store(path, NOW); /* both at the same time */
    put(other, "b", 0, "other");
    put(s, "a", 900, "late");
    expect_found(other, "a", "late", "900");
    text_store_close(other);
    text_store_close(s);
}

/* A process that writes spans and says how many are done is killed again and again. */
TEST(survives_killed_writers)
{
    const char *path = in_folder("killed.db");
    int32_t total = 0;
    for (int32_t round = 0; round < 8; round++) {
        int fd[2], n_done = total;
        assert_int_equal(pipe(fd), 0);
        pid_t child = fork();
        if (child == 0) {
            struct text_store *s = NULL;
            if (text_store_open(path, TTL, 1000, NOW, &s, NULL) != PITH_OK)
                _exit(1);
            for (int32_t i = total;; i++) {
                char text[64];
                int32_t n = 0;
                snprintf(text, sizeof(text), "span number%d here", i);
                struct text_hit hit = {.first = i, .last = i + 1, .layer = -1, .text = text};
                struct text_change c = {.session = "a", .timeline = "a", .add = &hit, .n_add = 1};
                if (text_store_change(s, &c, NOW, &n, NULL) != PITH_OK || n != 1)
                    _exit(1);
                n = i + 1;
                if (write(fd[1], &n, sizeof(n)) != sizeof(n))
                    _exit(1);
            }
        }
        close(fd[1]);
        for (int32_t i = 0; i < 5 + 7 * round; i++)
            assert_int_equal(read(fd[0], &n_done, sizeof(n_done)), sizeof(n_done));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        int32_t more;
        while (read(fd[0], &more, sizeof(more)) == sizeof(more))
            n_done = more;
        close(fd[0]);
        /* All that it said is there; one that it was about to say may be. */
        struct text_store *s = open_store(path, NOW);
        total = count_spans(s, "a");
        assert_true(total == n_done || total == n_done + 1);
        char question[32], wanted[32];
        snprintf(question, sizeof(question), "number%d", n_done - 1);
        snprintf(wanted, sizeof(wanted), "%d", n_done - 1);
        expect_found(s, "a", question, wanted);
        text_store_close(s);
    }
    char line[256];
    snprintf(line, sizeof(line), "%s", path);
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    assert_int_equal(sqlite3_open(line, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(q, 0), "ok");
    sqlite3_finalize(q);
    sqlite3_close(db);
}

static void expect_open(const char *path, pith_status wanted, const char *word)
{
    struct text_store *s = NULL;
    expect(text_store_open(path, TTL, 50, NOW, &s, &err), &err, wanted, word);
    assert_non_null(strstr(err.message, path));
}

static sqlite3 *open_raw(const char *path)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    return db;
}

static void raw(sqlite3 *db, const char *sql)
{
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
}

TEST(a_locked_file_is_said_to_be)
{
    const char *path = in_folder("locked.db");
    struct text_store *s = open_store(path, NOW);
    int32_t n;
    struct text_change c = {.session = "a", .timeline = "a"};
    put(s, "a", 0, "before");
    sqlite3 *db = open_raw(path);
    raw(db, "BEGIN IMMEDIATE");
    expect(text_store_change(s, &c, NOW, &n, &err), &err, PITH_BUSY, "locked.db");
    expect_open(path, PITH_BUSY, "another process has it locked");
    raw(db, "COMMIT");
    sqlite3_close(db);
    put(s, "a", 50, "after");
    assert_int_equal(count_spans(s, "a"), 2);
    text_store_close(s);
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

TEST(a_missing_folder_is_named)
{
    expect_open(in_folder("missing/store.db"), PITH_IO, "No such file");
    expect_open(folder, PITH_IO, "");
}

TEST(refuses_a_folder_that_it_may_not_write)
{
    char line[256];
    if (geteuid() == 0)
        test_skip("nothing is read-only to root");
    const char *sealed = in_folder("sealed");
    snprintf(line, sizeof(line), "mkdir '%s' && chmod 500 '%s'", sealed, sealed);
    assert_int_equal(system(line), 0);
    expect_open(in_folder("sealed/store.db"), PITH_IO, "Permission denied");
}

TEST(refuses_files_of_others)
{
    static char noise[20000];
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (char)rng_next(&seed);
    write_file(in_folder("noise.db"), noise, sizeof(noise));
    expect_open(in_folder("noise.db"), PITH_FORMAT, "not a database");
    sqlite3 *db = open_raw(in_folder("diary.db"));
    raw(db, "CREATE TABLE diary(day)");
    sqlite3_close(db);
    expect_open(in_folder("diary.db"), PITH_FORMAT, "not a recall store");
    db = open_raw(in_folder("later.db"));
    raw(db, "PRAGMA application_id=1349088360; PRAGMA user_version=2; CREATE TABLE t(x)");
    sqlite3_close(db);
    expect_open(in_folder("later.db"), PITH_UNSUPPORTED, "version 2");
}

/* Neither the file nor what its log holds is touched. */
TEST(files_of_others_stay_as_they_are)
{
    static const char *const journals[] = {"DELETE", "WAL"};
    char line[600], dir[200];
    snprintf(dir, sizeof(dir), "%s", in_folder(""));
    for (size_t i = 0; i < PI_LEN(journals); i++) {
        sqlite3 *db = open_raw(in_folder("own.db"));
        snprintf(line, sizeof(line), "PRAGMA journal_mode=%s; CREATE TABLE diary(day)",
                 journals[i]);
        raw(db, line);
        /* As a program that was killed leaves it. */
        snprintf(line, sizeof(line),
                 "cd '%s' && for f in own.db*; do cp $f left.${f#own.} && cp $f was.${f#own.};"
                 " done",
                 dir);
        assert_int_equal(system(line), 0);
        sqlite3_close(db);
        expect_open(in_folder("left.db"), PITH_FORMAT, "not a recall store");
        snprintf(line, sizeof(line),
                 "cd '%s' && for f in was.db was.db-wal; do"
                 " [ ! -e $f ] || cmp $f left.${f#was.} || exit 1; done; rm -f own.* left.* was.*",
                 dir);
        assert_int_equal(system(line), 0);
    }
}

/* Any page of the file is overwritten. The file opens or not. Each question then gives an error or
   a correct answer. */
TEST(damaged_files_answer_right_or_not_at_all)
{
    const char *path = in_folder("damaged.db"), *copy = in_folder("copy.db");
    static char bytes[1 << 20];
    uint64_t seed = 11;
    int32_t n_said = 0, n_answered = 0;
    struct text_store *s = open_store(path, NOW);
    for (int32_t i = 0; i < 60; i++)
        put(s, "a", 100 * i, texts[i % N_TEXT]);
    text_store_close(s);
    FILE *file = fopen(path, "rb");
    size_t size = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    assert_true(size > 4096 * 8 && size < sizeof(bytes));
    for (size_t page = 0; page < size / 4096; page++) {
        char line[512], kept[4096];
        snprintf(line, sizeof(line), "rm -f '%s' '%s-wal' '%s-shm'", copy, copy, copy);
        assert_int_equal(system(line), 0);
        memcpy(kept, bytes + page * 4096, sizeof(kept));
        for (size_t i = 0; i < sizeof(kept); i++)
            bytes[page * 4096 + i] = (char)rng_next(&seed);
        write_file(copy, bytes, size);
        memcpy(bytes + page * 4096, kept, sizeof(kept));
        struct text_hits hits = {0};
        struct text_change c = {.session = "b", .timeline = "b"};
        struct text_hit hit = {.first = 1, .last = 2, .layer = -1, .text = (char *)"new"};
        err = (pith_error){0};
        int32_t n;
        c.add = &hit;
        c.n_add = 1;
        pith_status status = text_store_open(copy, TTL, 50, NOW, &s, &err);
        if (status == PITH_OK) {
            status = text_store_find(s, "a", "onions cellar", 13, NULL, &ten, NOW, &hits, &err);
            for (int32_t i = 0; i < hits.n; i++)
                assert_string_equal(hits.hit[i].text, texts[hits.hit[i].first / 100 % N_TEXT]);
            n_answered += status == PITH_OK;
            if (status == PITH_OK)
                status = text_store_change(s, &c, NOW, &n, &err);
            text_hits_free(&hits);
            text_store_close(s);
        }
        if (status != PITH_OK) {
            assert_true(status == PITH_FORMAT || status == PITH_IO || status == PITH_UNSUPPORTED);
            assert_non_null(strstr(err.message, "copy.db"));
            n_said++;
        }
    }
    printf("%zu pages: %d times it was said, %d answers were right\n", size / 4096, n_said,
           n_answered);
    assert_true(n_said > 0 && n_answered > 0);
    /* A letter that changed in a text is found by the sum of the span alone. */
    sqlite3 *db = open_raw(path);
    raw(db, "UPDATE span SET text = replace(text, 'soup', 'soap')");
    sqlite3_close(db);
    struct text_hits hits = {0};
    s = open_store(path, NOW);
    expect(text_store_find(s, "a", "soup", 4, NULL, &ten, NOW, &hits, &err), &err, PITH_FORMAT,
           "tokens 100..110 is damaged");
    text_hits_free(&hits);
    text_store_close(s);
}

/* No byte beyond a limit can be written: the call fails, and the old contents stay. */
TEST(a_full_disk_keeps_what_was_there)
{
    const char *path = in_folder("full.db");
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {400000, 400000};
        struct text_store *s = NULL;
        err = (pith_error){0};
        pith_status status = PITH_OK;
        int32_t n = 0, n_done = 0;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        if (text_store_open(path, TTL, 50, NOW, &s, &err) != PITH_OK)
            _exit(100);
        while (status == PITH_OK && n_done < 90) {
            static char text[20001];
            memset(text, 'a' + n_done % 26, sizeof(text) - 1);
            struct text_hit hit = {.first = n_done, .last = n_done + 1, .layer = -1, .text = text};
            struct text_change c = {.session = "a", .timeline = "a", .add = &hit, .n_add = 1};
            status = text_store_change(s, &c, NOW, &n, &err);
            n_done += status == PITH_OK;
        }
        text_store_close(s);
        _exit(status == PITH_IO && strstr(err.message, "full.db") != NULL ? n_done : 101);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_in_range(WEXITSTATUS(how), 1, 89);
    struct text_store *s = open_store(path, NOW);
    assert_int_equal(count_spans(s, "a"), WEXITSTATUS(how));
    put(s, "a", 5000, "there is room again");
    text_store_close(s);
}

TEST(failing_memory_is_told)
{
    int64_t used = pi_mem_used(PI_MEM_OTHER);
    for (int32_t n = 1;; n++) {
        struct text_store *s = NULL;
        struct text_hits hits = {0};
        struct text_hit hit = {.first = 1, .last = 2, .layer = -1, .text = (char *)"a red code"};
        struct text_change c = {.session = "a", .timeline = "a", .add = &hit, .n_add = 1};
        int32_t n_written;
        pi_mem_fail_at(n, false);
        pith_status status = text_store_open("", TTL, 50, NOW, &s, &err);
        if (status == PITH_OK)
            status = text_store_change(s, &c, NOW, &n_written, &err);
        if (status == PITH_OK)
            status = text_store_find(s, "a", "code", 4, NULL, &ten, NOW, &hits, &err);
        pi_mem_fail_at(0, false);
        if (status == PITH_OK)
            assert_int_equal(hits.n, 1);
        else
            assert_int_equal(status, PITH_NOMEM);
        text_hits_free(&hits);
        text_store_close(s);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER), used);
        if (status == PITH_OK) {
            assert_true(n > 6);
            return;
        }
    }
}

TEST(fresh_names_differ)
{
    char a[TEXT_NAME_SIZE], b[TEXT_NAME_SIZE];
    text_name_fresh(a);
    text_name_fresh(b);
    assert_int_equal(strlen(a), 32);
    assert_int_equal(strspn(a, "0123456789abcdef"), 32);
    assert_string_not_equal(a, b);
}
