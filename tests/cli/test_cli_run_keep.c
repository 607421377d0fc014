/*
 * The report of `pith run` on a keep policy: the figures at the end and the map of `--map`. Both
 * are compared with a sequence that the library makes from the same text. Also the map's file after
 * a failure.
 */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>

#include "pith/inspect.h"
#include "pith/policy.h"
#include "testing.h"

#include "command.h"
#include "model_maker.h"
#include "svg_check.h"
#include "status.h"
#include "json_read.h"

TEST_GROUP(folder_make, folder_remove);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define TEXT                                                                                       \
    "The password of Maria is copper lantern. The friend of the merchant wanted a button. One "    \
    "summer the old smith rode to the chapel."
#define N_PREDICT 150
#define RUN                                                                                        \
    "run", "-m", MODEL, "-t", "1", "-p", TEXT, "--temp", "0", "-n", "150", "--ignore-eos",         \
        "--page", "16", "--recall", "none"
#define N_LAYER 3
#define N_HEAD 2
#define CAP 1000

/* ---- the same with the library ---- */

struct made {
    pith_model *model;
    pith_engine *engine;
    pith_seq *seq;
    int32_t n_prompt;
};

static struct made make(const char *keep, int32_t n_predict)
{
    struct made m;
    int32_t ids[CAP];
    pith_engine_params engine;
    pith_generate_params params;
    pith_engine_params_default(&engine);
    engine.n_thread = 1;
    engine.page_len = 16;
    engine.keep = keep;
    check(pith_model_load(MODEL, NULL, &m.model, &err), &err);
    check(pith_engine_create(m.model, &engine, &m.engine, &err), &err);
    check(pith_seq_create(m.engine, &m.seq, &err), &err);
    check(
        pith_tokenize(m.model, TEXT, strlen(TEXT), PITH_TOKENIZE_BOS, ids, CAP, &m.n_prompt, &err),
        &err);
    pith_generate_params_default(&params);
    params.n_predict = n_predict;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    check(pith_generate(m.seq, ids, m.n_prompt, &params, NULL, NULL, NULL, &err), &err);
    return m;
}

static void made_free(struct made *m)
{
    pith_seq_free(m->seq);
    pith_engine_free(m->engine);
    pith_model_free(m->model);
}

/* Positions of a lane; returns their number. */
static int32_t lane(const struct made *m, int32_t layer, int32_t head, int32_t *positions)
{
    pith_lane_info info;
    assert_int_equal(pith_seq_lane(m->seq, layer, head, &info, positions, CAP), PITH_OK);
    return info.n_entry;
}

/* The file's rows are the lanes: one rectangle for each run of positions, and nothing else. */
static void expect_lanes(const char *path, const struct made *m)
{
    struct svg_piece pieces[CAP];
    int32_t positions[CAP];
    char id[32];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *svg = calloc(1, 1 << 20);
    assert_non_null(svg);
    size_t len = fread(svg, 1, (1 << 20) - 1, file);
    fclose(file);
    svg_check(svg, len);
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++) {
            snprintf(id, sizeof(id), "l%dh%d", l, h);
            int32_t n = lane(m, l, h, positions), n_run = 0;
            int32_t n_piece = svg_row(svg, id, pieces, CAP);
            for (int32_t i = 0; i < n; i++) {
                n_run += i == 0 || positions[i] != positions[i - 1] + 1;
                assert_true(n_run <= n_piece);
                assert_true(pieces[n_run - 1].level == 8);
                assert_true(positions[i] >= pieces[n_run - 1].begin);
                assert_true(positions[i] < pieces[n_run - 1].end);
            }
            assert_int_equal(n_piece, n_run);
            for (int32_t i = 0; i < n_piece; i++)
                n -= pieces[i].end - pieces[i].begin;
            assert_int_equal(n, 0);
        }
    free(svg);
}

/* ---- the figures at the end ---- */

static const char *const policies[] = {
    "streaming:budget=32,slack=16",
    "random:budget=40%,slack=16,prefix=8,window=8",
    "knorm:budget=48,slack=16,granularity=all",
};
#define N_POLICY (sizeof(policies) / sizeof(policies[0]))

/* Tokens that no lane holds. */
static int32_t count_gone(const struct made *m)
{
    bool held[CAP] = {false};
    int32_t positions[CAP], n_gone = 0;
    for (int32_t l = 0; l < N_LAYER; l++)
        for (int32_t h = 0; h < N_HEAD; h++)
            for (int32_t n = lane(m, l, h, positions), i = 0; i < n; i++)
                held[positions[i]] = true;
    for (int32_t i = 0; i < pith_seq_length(m->seq); i++)
        n_gone += !held[i];
    return n_gone;
}

TEST(json_tells_what_a_policy_did)
{
    struct made full = make(NULL, N_PREDICT);
    pith_kv_stats full_kv, kv;
    pith_keep_stats keep;
    pith_engine_kv_stats(full.engine, &full_kv);
    for (size_t i = 0; i < N_POLICY; i++) {
        struct said s = command(NULL, RUN, "--json", "--keep", policies[i], NULL);
        expect_status(&s, 0);
        json_t *o = json_loads(s.err, 0, NULL);
        assert_non_null(o);
        struct made m = make(policies[i], N_PREDICT);
        pith_seq_keep_stats(m.seq, &keep);
        pith_engine_kv_stats(m.engine, &kv);
        assert_true(keep.rounds > 1);
        assert_int_equal(whole(o, "keep_rounds"), keep.rounds);
        assert_int_equal(whole(o, "keep_evicted"), keep.evicted);
        assert_int_equal(whole(o, "keep_live"), keep.live);
        assert_int_equal(whole(o, "keep_full"), keep.live + keep.evicted);
        assert_int_equal(whole(o, "keep_evicted_tokens"), count_gone(&m));
        assert_int_equal(whole(o, "keep_first_round_at"), keep.first_round_at);
        assert_int_equal(whole(o, "kv_live_bytes"), kv.live_bytes);
        assert_int_equal(whole(o, "kv_peak_bytes"), kv.peak_bytes);
        assert_int_equal(whole(o, "kv_full_live_bytes"), full_kv.live_bytes);
        assert_int_equal(whole(o, "kv_full_bytes"), full_kv.used_bytes);
        double share = json_real_value(json_object_get(o, "keep_share_of_time"));
        double seconds = json_real_value(json_object_get(o, "prompt_s")) +
                         json_real_value(json_object_get(o, "generate_s"));
        assert_true(share > 0.0 && share < 1.0);
        double rounds_s = json_real_value(json_object_get(o, "keep_s"));
        assert_true(rounds_s / seconds > 0.999 * share && rounds_s / seconds < 1.001 * share);
        made_free(&m);
        json_decref(o);
    }
    made_free(&full);
}

TEST(lines_tell_what_a_policy_did)
{
    char line[200];
    pith_keep_stats keep;
    for (size_t i = 0; i < N_POLICY; i++) {
        struct said s = command(NULL, RUN, "--keep", policies[i], NULL);
        expect_status(&s, 0);
        struct made m = make(policies[i], N_PREDICT);
        pith_seq_keep_stats(m.seq, &keep);
        snprintf(line, sizeof(line), "%s: %lld rounds, the first at %d tokens, ", policies[i],
                 (long long)keep.rounds, keep.first_round_at);
        expect_word(s.err, line);
        expect_word(s.err, " % of the time\nevicted  ");
        snprintf(line, sizeof(line),
                 "evicted  %lld of %lld entries, %d of %d tokens from every lane; pages freed ",
                 (long long)keep.evicted, (long long)(keep.evicted + keep.live), count_gone(&m),
                 pith_seq_length(m.seq));
        expect_word(s.err, line);
        snprintf(line, sizeof(line), " in %lld entries", (long long)keep.live);
        expect_word(s.err, line);
        snprintf(line, sizeof(line), ": %.1f %% of the full cache's ",
                 100.0 * (double)keep.live / (double)(keep.live + keep.evicted));
        expect_word(s.err, line);
        assert_null(strstr(s.err, "map      "));
        made_free(&m);
    }
}

/* Layers with a window hold as many bytes under a policy as in the full cache. */
TEST(json_tells_the_full_cache_of_a_model_with_windows)
{
    char path[128];
    int64_t live[2];
    check(model_make_of("arch=gemma3 layers=4 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 "
                        "window=40 pattern=2 tied=1 vocab_file=" MODEL,
                        in_folder("windows.gguf", path), &err),
          &err);
    for (int32_t i = 0; i < 2; i++) {
        struct said s = command(NULL, RUN, "-m", path, "--json", "--keep",
                                i == 0 ? "none" : "streaming:budget=64,slack=8,sinks=2", NULL);
        expect_status(&s, 0);
        json_t *o = json_loads(s.err, 0, NULL);
        assert_non_null(o);
        live[i] = whole(o, i == 0 ? "kv_live_bytes" : "kv_full_live_bytes");
        assert_true(i == 0 || whole(o, "kv_live_bytes") < live[0]);
        json_decref(o);
    }
    assert_int_equal(live[0], live[1]);
}

/* Entries that recall has brought back are not the full cache's. */
TEST(json_tells_the_full_cache_without_guests)
{
    int64_t live[2];
    for (int32_t i = 0; i < 2; i++) {
        struct said s = command(
            NULL, "run", "-m", MODEL, "-f", PITH_SOURCE_DIR "/models/demo/prompt-2k.txt", "-n",
            "24", "--ignore-eos", "--json", "--keep", i == 0 ? "none" : "streaming:budget=256",
            "--recall", i == 0 ? "none" : "kv", NULL);
        expect_status(&s, 0);
        json_t *o = json_loads(s.err, 0, NULL);
        assert_non_null(o);
        live[i] = whole(o, i == 0 ? "kv_live_bytes" : "kv_full_live_bytes");
        assert_true(i == 0 || whole(o, "recall_guests") > 0);
        json_decref(o);
    }
    assert_int_equal(live[0], live[1]);
}

/* The full cache has nothing to tell, and a policy without a round only that. */
TEST(the_full_cache_tells_nothing_of_eviction)
{
    struct said s = command(NULL, RUN, NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.err, "keep"));
    assert_null(strstr(s.err, "evicted"));
    assert_null(strstr(s.err, "live     "));
    expect_word(s.err, " bytes live\n");
    s = command(NULL, RUN, "--json", NULL);
    expect_status(&s, 0);
    assert_null(strstr(s.err, "keep_live"));
    assert_null(strstr(s.err, "kv_full"));
    s = command(NULL, RUN, "--keep", "streaming:budget=900", NULL);
    expect_status(&s, 0);
    expect_word(s.err, "streaming:budget=900: no round yet, the fullest lane holds ");
    assert_null(strstr(s.err, "evicted"));
}

/* ---- the map ---- */

TEST(the_map_shows_what_lanes_kept)
{
    char path[128];
    for (size_t i = 0; i <= N_POLICY; i++) {
        const char *keep = i < N_POLICY ? policies[i] : "none";
        struct said s = command(NULL, RUN, "--map", in_folder("a.svg", path), "--keep", keep, NULL);
        expect_status(&s, 0);
        expect_word(s.err, "\nmap      ");
        expect_word(s.err, path);
        struct made m = make(keep, N_PREDICT);
        expect_lanes(path, &m);
        made_free(&m);
    }
}

/* Nothing is generated: the map is that of the prompt. */
TEST(maps_a_prompt_without_an_answer)
{
    char path[128];
    struct said s = command(NULL, "run", "-m", MODEL, "-t", "1", "-p", TEXT, "-n", "0", "-q",
                            "--map", in_folder("prompt.svg", path), NULL);
    expect_status(&s, 0);
    assert_int_equal(s.out_len, 0);
    assert_int_equal(s.err_len, 0);
    struct made m = make(NULL, 0);
    expect_lanes(path, &m);
    made_free(&m);
}

TEST(a_name_that_ends_in_html_is_a_page)
{
    char path[128], begin[16] = "";
    struct said s = command(NULL, RUN, "--map", in_folder("map.html", path), NULL);
    expect_status(&s, 0);
    expect_word(s.err, "map.html");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(begin, 1, 15, file), 15);
    assert_string_equal(begin, "<!doctype html>");
    fclose(file);
}

/* Ctrl-C ends the text; the map shows the text so far. */
TEST(maps_an_interrupted_run)
{
    char path[128], buf[4096];
    int ends[2], in = open("/dev/null", O_RDONLY);
    in_folder("interrupted.svg", path);
    const char *const words[] = {"run",    "-m",        MODEL,          "-t",    "1",        "-p",
                                 TEXT,     "-n",        "100000",       "-q",    "--recall", "none",
                                 "--keep", policies[0], "--ignore-eos", "--map", path,       NULL};
    FILE *log = tmpfile();
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    pid_t pid = command_start(words, in, ends[1], fileno(log));
    close(ends[1]);
    assert_true(read(ends[0], buf, 1) == 1);
    kill(pid, SIGINT);
    while (read(ends[0], buf, sizeof(buf)) > 0)
        continue;
    close(ends[0]);
    assert_int_equal(command_wait(pid), 130);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *svg = calloc(1, 1 << 20);
    assert_non_null(svg);
    size_t len = fread(svg, 1, (1 << 20) - 1, file);
    svg_check(svg, len);
    expect_word(svg, "--keep streaming:budget=32,slack=16<");
    free(svg);
    fclose(file);
    fclose(log);
    close(in);
}

/* ---- what fails ---- */

static void expect_content(const char *path, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t len = fread(found, 1, sizeof(found) - 1, file);
    fclose(file);
    assert_int_equal(len, strlen(text));
    assert_string_equal(found, text);
}

/* Files in the folder of path. */
static int count_files(const char *path)
{
    char folder[128];
    int n = 0;
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Said before the model is read: a model that there is not comes second. */
TEST(a_bad_path_is_refused_before_the_model_is_read)
{
    char path[128];
    struct said s = command(NULL, "run", "-m", "/no/model", "-p", "a", "--map",
                            in_folder("no/such.svg", path), NULL);
    expect_failure(&s, 1, "no/such.svg: cannot create: No such file or directory");
    expect_word(s.err, "--map: /");
    s = command(NULL, RUN, "--map", "/tmp", NULL);
    expect_failure(&s, 1, "--map: /tmp: cannot write: Is a directory");
    assert_int_equal(s.out_len, 0);
    s = command(NULL, RUN, "--map", "", NULL);
    expect_failure(&s, 1, "--map: the name of the file to write is empty");
    s = command(NULL, RUN, "--map", NULL);
    expect_status(&s, 2);
}

/* A run without tokens, or that fails, leaves the file that was there and nothing beside it. */
TEST(a_run_that_fails_leaves_the_old_map)
{
    char path[128];
    write_file(in_folder("old.svg", path), "old");
    int n_file = count_files(path);
    struct said s =
        command(NULL, "run", "-m", MODEL, "-t", "1", "-p", "", "--no-bos", "--map", path, NULL);
    expect_failure(&s, 2, "the prompt is empty");
    s = command(NULL, RUN, "-c", "16", "--map", path, NULL);
    expect_failure(&s, 1, "do not fit the KV memory");
    s = command(NULL, "run", "-m", "/no/model", "-p", "a", "--map", path, NULL);
    expect_status(&s, 1);
    expect_content(path, "old");
    assert_int_equal(count_files(path), n_file);
}

/* The text is whole, the failure is one sentence. */
TEST(a_full_disk_loses_the_map_and_no_text)
{
    SKIP_WITHOUT("/dev/full");
    struct said s = command(NULL, RUN, "-q", "--map", "/dev/full", NULL);
    expect_failure(&s, 1, "--map: /dev/full: cannot write: No space left on device");
    assert_true(s.out_len > 0);
}

/* The same with a file, which the system does not let grow. */
TEST(a_file_that_is_too_large_keeps_the_text)
{
    char path[128];
    struct rlimit limit, before;
    write_file(in_folder("old.svg", path), "old");
    int n_file = count_files(path);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){2000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN); /* the command inherits it */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct said s = command(NULL, RUN, "-q", "--map", path, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_failure(&s, 1, "old.svg: cannot write: File too large");
    expect_content(path, "old");
    assert_int_equal(count_files(path), n_file);
}
