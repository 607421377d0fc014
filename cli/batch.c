/*
 * batch.c - `pith batch`: a file of requests in, a file of answers out, all of them at once in one
 * KV memory. The scheduler decides which requests run. Here requests are handed to it as its queue
 * empties. Answers are gathered until a request has all of them, which then are a line.
 *
 * Invariant: a request is in the output once, whole, or not at all: whatever ends the command, a
 * second one with --resume does the rest.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "batch_file.h"
#include "batch_report.h"
#include "budget.h"
#include "command.h"
#include "draft.h"
#include "pith/ranks.h"
#include "ranks.h"
#include "session.h"

struct work_options {
    const char *in;
    const char *out;
    bool resume;
    const char *shard;
    int32_t n_predict;
    bool ignore_end;
    bool parse_special;
    bool plain;
    bool no_bos;
};

struct schedule_options {
    int32_t n_seq;
    int32_t n_queue;
    int32_t step_tokens;
    float reserve; /* below 0: the scheduler's own */
    float watermark;
    bool no_prefix;
    bool pressure;
    int64_t swap_bytes;
    int32_t max_preempt;
};

struct batch_options {
    struct model_options model;
    struct work_options work;
    struct batch_report_options report;
    struct chat_options chat;
    struct sample_options sample;
    struct schedule_options schedule;
    struct draft_options draft;
    struct memory_options memory;
};

#define AT(member) .offset = offsetof(struct work_options, member)
static const struct option work_option_table[] = {
    {"--file", "-f", "FILE", OPTION_TEXT, AT(in), .required = true,
     .help = "requests, a JSON object in each line; - is standard input"},
    {"--output", "-o", "FILE", OPTION_TEXT, AT(out), .required = true,
     .help = "answers, in the order in which they are ready"},
    {"--resume", NULL, NULL, OPTION_FLAG, AT(resume),
     .help = "go on with an output that is there: leave out the answers that it has"},
    {"--shard", NULL, "I/N", OPTION_TEXT, AT(shard), .absent = "all",
     .help = "the Ith of N parts of the requests, from 0 on, by their custom_id"},
    {"--predict", "-n", "N", OPTION_INT, AT(n_predict), .min = -1, .max = INT32_MAX,
     .absent = "until the model ends the text",
     .help = "most tokens of an answer whose request does not say", .also = "--n-predict",
     .env = "LLAMA_ARG_N_PREDICT"},
    {"--ignore-eos", NULL, NULL, OPTION_FLAG, AT(ignore_end),
     .help = "go on where the model ends a text"},
    {"--parse-special", NULL, NULL, OPTION_FLAG, AT(parse_special),
     .help = "read the names of special tokens in prompts as those tokens, as is done anyway"},
    {"--no-parse-special", NULL, NULL, OPTION_FLAG, AT(plain),
     .help = "read the names of special tokens in prompts as text"},
    {"--no-bos", NULL, NULL, OPTION_FLAG, AT(no_bos),
     .help = "do not add the tokens that the model wants around a text"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct schedule_options, member)
static const struct option schedule_option_table[] = {
    {"--seqs", NULL, "N", OPTION_INT, AT(n_seq), .min = 1, .max = 1 << 20,
     .help = "most answers that are written at the same time", .unset = "-1 auto",
     .also = "-np --parallel", .env = "LLAMA_ARG_N_PARALLEL"},
    {"--queue", NULL, "N", OPTION_INT, AT(n_queue), .min = 1, .max = 1 << 20,
     .help = "most requests that wait with their prompts in memory"},
    {"--step", NULL, "N", OPTION_INT, AT(step_tokens), .max = 1 << 20,
     .absent = "--chunk, or 128 where answers are being written",
     .help = "most tokens that are computed in one step"},
    {"--reserve", NULL, "X", OPTION_FLOAT, AT(reserve), .min = -1, .max = 1,
     .absent = "1 with --keep, else 0.5",
     .help = "share of an answer's possible growth that is set aside first"},
    {"--watermark", NULL, "X", OPTION_FLOAT, AT(watermark), .max = 1,
     .help = "share of the KV memory that stays free when a request begins"},
    {"--max-preempt", NULL, "N", OPTION_INT, AT(max_preempt), .max = INT32_MAX,
     .help = "a request that was put back so often gets all its memory first"},
    {"--swap", NULL, "SIZE", OPTION_BYTES, AT(swap_bytes), .max = 0x1p62,
     .absent = "1GiB; with a size or auto of --kv 0",
     .help = "host memory for requests that are put back and cannot be computed again"},
    {"--no-prefix", NULL, NULL, OPTION_FLAG, AT(no_prefix),
     .help = "compute every prompt whole, also a beginning that others share",
     .also = "--no-cache-prompt", .negative = "--cache-prompt", .env = "!LLAMA_ARG_CACHE_PROMPT"},
    {"--pressure", NULL, NULL, OPTION_FLAG, AT(pressure),
     .help = "evict or share more before a request is put back; answers then depend on company"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct batch_options, model)},
    {"Requests", work_option_table, offsetof(struct batch_options, work)},
    {"Report", batch_report_option_table, offsetof(struct batch_options, report)},
    {"Chat template", chat_option_table, offsetof(struct batch_options, chat)},
    {"Sampling, where a request does not say", sample_option_table,
     offsetof(struct batch_options, sample)},
    {"Scheduling", schedule_option_table, offsetof(struct batch_options, schedule)},
    {"Drafts", draft_option_table, offsetof(struct batch_options, draft)},
    {"KV memory", memory_option_table, offsetof(struct batch_options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct batch_options *o = options;
    pith_scheduler_params p;
    pith_scheduler_params_default(&p);
    o->work.n_predict = -1;
    o->schedule = (struct schedule_options){
        .n_seq = p.n_seq,
        .n_queue = p.n_queue,
        .step_tokens = p.step_tokens,
        .reserve = (float)p.reserve,
        .watermark = (float)p.watermark,
        .swap_bytes = -1,
        .max_preempt = p.max_preempt,
    };
    sample_options_default(&o->sample);
    draft_options_default(&o->draft, "none");
    memory_options_default(&o->memory);
}

/* ---- what runs ---- */

struct batch {
    const struct batch_options *o;
    struct session s;
    struct serve_batch_setup setup;
    struct batch_input in;
    struct batch_output out;
    pith_scheduler *scheduler;
    struct batch_report report;
    struct job *next; /* whose prompts are being submitted, so only that call may end it; NULL:
                         none */
    size_t n_item;    /* of the input that became jobs, or need none */
    bool stopping;    /* what ends from now on is not written */
};

/* One prompt of a request. */
struct part {
    struct job *job;
    int32_t index;
    int64_t id; /* the scheduler's */
};

/* A request, from its submission to its line. */
struct job {
    struct batch *batch;
    struct serve_batch_line *line;
    struct part *part; /* [n_part] */
    int32_t n_part;
    int32_t n_submitted;
    int32_t n_pending; /* answers that were submitted and have not ended */
};

static void job_free(struct job *job)
{
    free(job->part);
    serve_batch_free(job->line);
    free(job);
}

/* The request failed: what else of it runs is not needed any more. */
static void job_fail(struct job *job)
{
    for (int32_t i = 0; i < job->n_submitted && !job->batch->stopping; i++)
        pith_scheduler_cancel(job->batch->scheduler, job->part[i].id);
    job->n_submitted = job->n_part;
}

static void need_memory(bool ok)
{
    if (!ok)
        cli_fail("no memory for a line of the output");
}

/* Writes the line of a request that waits for nothing any more, and frees it. */
static void job_end(struct job *job)
{
    struct batch *b = job->batch;
    b->stopping = b->stopping || cli_interrupted(); /* what was cancelled has no answer */
    if (!b->stopping) {
        json_t *line = serve_batch_answer(job->line);
        need_memory(line != NULL);
        b->stopping = !batch_output_add(&b->out, line);
        if (!b->stopping)
            *(serve_batch_failed(job->line) ? &b->report.n_failed : &b->report.n_answered) += 1;
    }
    job_free(job);
}

static bool on_token(void *user, const pith_answer_token *token)
{
    const struct part *part = user;
    need_memory(serve_batch_token(part->job->line, part->index, token));
    return !serve_batch_is_over(part->job->line, part->index, token->answer);
}

static void on_done(void *user, const pith_answer_result *result)
{
    const struct part *part = user;
    struct job *job = part->job;
    bool failed = serve_batch_failed(job->line);
    need_memory(serve_batch_done(job->line, part->index, result));
    batch_report_add(&job->batch->report, result);
    job->n_pending--;
    if (!failed && serve_batch_failed(job->line))
        job_fail(job);
    if (job->n_pending == 0 && job->n_submitted == job->n_part && job != job->batch->next)
        job_end(job);
}

/* ---- jobs ---- */

static void make_parts(struct job *job)
{
    need_memory(serve_batch_open(job->line, (int64_t)time(NULL)));
    job->n_part = serve_batch_n_prompt(job->line);
    job->part = cli_alloc((size_t)job->n_part, sizeof(*job->part));
    for (int32_t i = 0; i < job->n_part; i++)
        job->part[i] = (struct part){.job = job, .index = i};
}

/* Another number each time, for requests that ask for any (SplitMix64), below 2^53. */
static uint64_t any_seed(int64_t number)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    uint64_t z = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return batch_mix(z + 0x9e3779b97f4a7c15u * (uint64_t)number) >> 11;
}

static struct job *job_make(struct batch *b, const struct batch_item *item)
{
    pith_error err;
    struct job *job = cli_alloc(1, sizeof(*job));
    job->batch = b;
    pith_status status = serve_batch_read(item->at, item->len, item->number, &b->setup,
                                          any_seed(item->number), &job->line, &err);
    if (status != PITH_FORMAT) /* which its line of the output tells */
        cli_check(status, &err);
    if (item->twin > 0)
        serve_batch_refuse_twin(job->line, item->twin);
    if (!serve_batch_failed(job->line))
        make_parts(job);
    return job;
}

/* ---- the loop ---- */

/* Submits the prompts of a request; false: the queue is full, and the rest follows later. */
static bool submit(struct batch *b, struct job *job)
{
    pith_error err;
    while (job->n_submitted < job->n_part && !serve_batch_failed(job->line)) {
        struct part *part = &job->part[job->n_submitted];
        pith_generate_params params;
        pith_request request;
        serve_batch_get(job->line, part->index, &params, &request);
        request.on_token = on_token;
        request.on_done = on_done;
        request.user = part;
        pith_status status = pith_scheduler_submit(b->scheduler, &request, &part->id, &err);
        if (status == PITH_BUSY)
            return false;
        if (status != PITH_OK) {
            serve_batch_fail(job->line, status, err.message, request.n_prompt,
                             pith_scheduler_room(b->scheduler, &request));
            job_fail(job);
        } else {
            job->n_submitted++;
            job->n_pending += request.n_answer;
        }
    }
    return true;
}

/* Hands over requests while there is room for them. */
static void feed(struct batch *b)
{
    while (!b->stopping) {
        if (b->next == NULL) {
            while (b->n_item < b->in.n && b->in.item[b->n_item].done)
                b->n_item++;
            if (b->n_item == b->in.n)
                return;
            b->next = job_make(b, &b->in.item[b->n_item++]);
        }
        if (!submit(b, b->next))
            return;
        struct job *job = b->next;
        b->next = NULL;
        if (job->n_pending == 0) /* refused */
            job_end(job);
    }
}

static void run_all(struct batch *b)
{
    pith_error err;
    bool idle = false;
    batch_report_progress(&b->report, b->scheduler, b->s.engine);
    while (!b->stopping && !cli_interrupted()) {
        feed(b);
        if (idle && b->next == NULL && b->n_item == b->in.n)
            break;
        cli_check(pith_scheduler_step(b->scheduler, &idle, &err), &err);
        batch_report_progress(&b->report, b->scheduler, b->s.engine);
    }
    batch_report_progress_end(&b->report);
    b->stopping = b->stopping || cli_interrupted();
}

/* Ends what still runs, unwritten. */
static void abandon(struct batch *b)
{
    struct job *job = b->next;
    b->next = NULL;
    if (job != NULL)
        job->n_submitted = job->n_part; /* nothing follows */
    if (job != NULL && job->n_pending == 0)
        job_end(job);
    pith_scheduler_free(b->scheduler);
}

/* ---- the command ---- */

/* Answers that can run at the same time, and how many the largest request has. */
static void count_answers(struct batch *b)
{
    int64_t n = 0, most = b->o->schedule.n_seq;
    for (size_t i = 0; i < b->in.n; i++) {
        int32_t n_answer = b->in.item[i].done ? 0 : b->in.item[i].n_answer;
        n += n_answer;
        if (n_answer > b->s.least_answer)
            b->s.least_answer = n_answer;
    }
    b->s.n_answer = (int32_t)(n < 1 ? 1 : n < most ? n : most);
}

/* Without -c and --kv-memory: as many sequences as can run at the same time. Where the room
   for them is unknown, one. */
static void size_memory(struct batch *b, struct memory_options *memory)
{
    bool known = session_room(b->s.model, &b->o->model) > 0;
    budget_several(&b->s, &b->o->model, memory, known ? b->s.n_answer : 1);
}

static pith_scheduler_params scheduler_params(const struct session *s,
                                              const struct schedule_options *o)
{
    pith_scheduler_params p;
    pith_scheduler_params_default(&p);
    p.n_seq = o->n_seq;
    p.n_queue = o->n_queue;
    p.step_tokens = o->step_tokens;
    p.reserve = (double)o->reserve;
    p.watermark = (double)o->watermark;
    p.no_prefix = o->no_prefix;
    p.pressure = o->pressure;
    p.swap_bytes = s->swap_bytes;
    p.n_ctx = budget_context(s);
    p.max_preempt = o->max_preempt;
    p.led = true;
    return p;
}

/* The settings that requests have in common; biases are the caller's to free. */
static struct serve_batch_setup make_setup(const struct batch_options *o, pith_logit_bias **bias)
{
    struct serve_batch_setup setup = {0};
    pith_generate_params_default(&setup.params);
    setup.template_name = o->chat.template_name;
    setup.system = o->chat.system;
    setup.no_thinking = o->chat.no_thinking;
    setup.no_bos = o->work.no_bos;
    setup.plain_prompts = o->work.plain;
    setup.params.n_predict = o->work.n_predict;
    setup.params.ignore_end = o->work.ignore_end;
    setup.params.sample = sample_params(&o->sample, bias);
    return setup;
}

/* "0/8"; NULL: all. */
static struct batch_shard read_shard(const char *text)
{
    struct batch_shard s = {0, 1};
    char *end = NULL;
    if (text == NULL)
        return s;
    errno = 0;
    s.index = strtoll(text, &end, 10);
    bool ok = end != text && *end == '/' && end[1] >= '0' && end[1] <= '9';
    if (ok)
        s.n = strtoll(end + 1, &end, 10);
    if (!ok || *end != '\0' || errno != 0 || s.n < 1 || s.n > INT32_MAX)
        cli_fail_usage("--shard: \"%s\" is no part and number of parts, as 0/8", text);
    if (s.index < 0 || s.index >= s.n)
        cli_fail_usage("--shard: of %lld parts the first is 0 and the last %lld", (long long)s.n,
                       (long long)s.n - 1);
    return s;
}

/* Rank 0 alone has the files. Returns whether a request is a conversation. */
static bool open_files(struct batch *b)
{
    bool chat = false;
    if (ranks_is_follower())
        return false;
    batch_input_read(&b->in, b->o->work.in, read_shard(b->o->work.shard), &b->setup);
    batch_output_open(&b->out, b->o->work.out, b->o->work.resume, &b->in);
    for (size_t i = 0; i < b->in.n; i++) {
        b->report.n_skipped += b->in.item[i].done;
        chat = chat || (!b->in.item[i].done && b->in.item[i].chat && b->in.item[i].n_answer > 0);
    }
    b->report.n_request = (int64_t)b->in.n;
    return chat;
}

/* Opens what the options name, in the order in which mistakes are cheapest. */
static void begin(struct batch *b)
{
    struct memory_options memory = b->o->memory;
    pith_error err;
    (void)engine_params(&b->o->model, &b->o->memory); /* complains before the files are read */
    bool chat = open_files(b);
    b->s.n_ctx = b->o->memory.n_ctx;
    b->s.drafting = b->o->draft.what;
    b->s.swap_bytes = b->o->schedule.swap_bytes;
    session_load(&b->s, &b->o->model, false);
    draft_load(&b->s, &b->o->draft, &b->o->model);
    b->setup.model = b->s.model;
    sample_check(&b->setup.params.sample, b->s.model);
    if (chat)
        session_check_template(b->s.model, &b->o->chat);
    count_answers(b);
    int32_t asked = b->s.n_answer;
    b->s.sample = &b->setup.params.sample;
    budget_settle(&b->s, &b->o->model, &memory, BUDGET_BATCH, 0);
    struct schedule_options schedule = b->o->schedule;
    if (b->s.n_answer < asked)
        schedule.n_seq = b->s.n_answer;
    pith_ranks_tell(&schedule.n_seq, sizeof(schedule.n_seq));
    size_memory(b, &memory);
    pith_ranks_tell(&memory.kv_bytes, sizeof(memory.kv_bytes)); /* rank 0 knows the requests */
    session_start(&b->s, &b->o->model, &memory, 0);
    pith_scheduler_params params = scheduler_params(&b->s, &schedule);
    params.draft = draft_start(&b->s, &b->o->draft, &b->o->model);
    cli_check(pith_scheduler_create(b->s.engine, &params, &b->scheduler, &err), &err);
}

/* Prints the closing line; returns the exit status. */
static int finish(struct batch *b)
{
    const char *path = b->o->work.out;
    long long n_there = b->report.n_skipped + b->report.n_answered + b->report.n_failed;
    bool closed = batch_output_close(&b->out);
    bool printed = batch_report_print(&b->report, &b->s);
    ranks_report();
    if (!closed)
        cli_fail("cannot write \"%s\": %s; %lld of %lld requests are in it, and the same command "
                 "with --resume does the rest",
                 path, strerror(b->out.error), n_there, (long long)b->report.n_request);
    if (b->stopping) {
        cli_note("interrupted: %lld of %lld requests are in \"%s\", and the same command with "
                 "--resume does the rest",
                 n_there, (long long)b->report.n_request, path);
        return EXIT_INTERRUPTED;
    }
    if (b->report.n_failed > 0)
        cli_note("%lld of %lld requests failed; \"%s\" says why", (long long)b->report.n_failed,
                 (long long)b->report.n_request, path);
    return b->report.n_failed > 0 || !printed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int answer_all(struct batch *b)
{
    cli_interrupt_catch();
    batch_report_start(&b->report, &b->o->report);
    run_all(b);
    batch_report_finish(&b->report, b->scheduler, b->s.engine);
    abandon(b);
    int status = finish(b);
    batch_input_free(&b->in);
    session_free(&b->s);
    ranks_leave(); /* the others ended well, whatever the answers are */
    return status;
}

/* Another rank than 0 takes part until all are answered. */
static bool follow(struct batch *b)
{
    if (!ranks_follow(b->scheduler))
        return false;
    pith_scheduler_free(b->scheduler);
    session_free(&b->s);
    return true;
}

static int run(void *options)
{
    struct batch_options *o = options;
    pith_logit_bias *bias;
    chat_system_read(&o->chat);
    struct batch b = {.o = o};
    batch_report_check(&o->report);
    b.setup = make_setup(o, &bias);
    chat_template_read(&o->chat);
    b.setup.template_text = o->chat.template_text;
    begin(&b);
    int status = follow(&b) ? EXIT_SUCCESS : answer_all(&b);
    free(bias);
    return status;
}

const struct command command_batch = {
    .name = "batch",
    .summary = "answer a file of requests, all at once",
    .synopsis = "-m MODEL -f REQUESTS.jsonl -o OUT.jsonl",
    .notes =
        "Both files have the layout of OpenAI's batch files, which docs/batch.md describes. A "
        "request\n"
        "has a custom_id, and its answer comes with that, in any order. A request that is wrong "
        "is\n"
        "answered with an error, and the others go on. Each gets the tokens that it would get "
        "alone.\n"
        "Ctrl-C ends the command; what was written is whole, and --resume does the rest.\n"
        "\n"
        "  pith batch -m model.gguf -f requests.jsonl -o out.jsonl --kv-memory 1GiB\n"
        "  pith batch -m model.gguf -f requests.jsonl -o out.jsonl --resume\n"
        "  pith batch -m model.gguf -f requests.jsonl -o out-0.jsonl --shard 0/8 --resume\n"
        "\n"
        "Exit status: 0 all requests were answered, 1 some failed (the output says why), or the\n"
        "command did. 2 the command line is wrong; 130 interrupted.",
    .groups = groups,
    .options_size = sizeof(struct batch_options),
    .defaults = defaults,
    .run = run,
};
