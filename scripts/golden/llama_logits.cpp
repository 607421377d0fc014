// llama_logits.cpp - evaluates token ids with llama.cpp on the CPU and prints what tests compare,
// or continues a text greedily. Compiled by peer.py against a build of llama.cpp; no part of Pith.
//
//     llama_logits MODEL ID,ID,... logits POS,POS,...   the rows of these positions, abridged
//     llama_logits MODEL TEXT story N                   the prompt's ids, N greedy ids, the text
//
// A row is printed as its eleven largest logits (ten to compare and the gap below the tenth) and 64
// projections on random signs, which keep angles between rows: enough to estimate a cosine.
//
// The KV cache is F32 and flash attention off, so that what is compared is the arithmetic of the
// weights and not the storage of keys; weights are not repacked, so that the rows do not depend on
// the machine's instruction set more than they must.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "llama.h"

static void fail(const char *what)
{
    fprintf(stderr, "llama_logits: %s\n", what);
    exit(1);
}

static std::vector<llama_token> parse_ids(const char *text)
{
    std::vector<llama_token> ids;
    for (char *end; *text != '\0'; text = *end == ',' ? end + 1 : end) {
        ids.push_back((llama_token)strtol(text, &end, 10));
        if (end == text)
            fail("bad list of ids");
    }
    return ids;
}

static llama_context *open_context(llama_model *model, uint32_t n_ctx)
{
    llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
    params.n_batch = n_ctx;
    params.n_ubatch = n_ctx;
    params.n_threads = params.n_threads_batch = 2;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    return llama_init_from_model(model, params);
}

static void evaluate(llama_context *context, const llama_token *ids, size_t n, llama_pos pos,
                     bool all)
{
    llama_batch batch = llama_batch_init((int32_t)n, 0, 1);
    batch.n_tokens = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = pos + (llama_pos)i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all || i + 1 == n;
    }
    if (llama_decode(context, batch) != 0)
        fail("llama_decode failed");
    llama_batch_free(batch);
}

// Bits j of splitmix64's output number i + 1 are the signs of projection j;
// tests/model/test_logits.c computes the same.
static uint64_t signs_of(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void print_projections(const float *row, int n_vocab)
{
    std::vector<double> sums(64);
    for (int i = 0; i < n_vocab; i++) {
        uint64_t signs = signs_of((uint64_t)i);
        for (int j = 0; j < 64; j++)
            sums[j] += (signs >> j & 1) != 0 ? row[i] : -row[i];
    }
    printf("proj");
    for (double sum : sums)
        printf(" %.5g", sum / sqrt((double)n_vocab));
    printf("\n");
}

static void print_top(const float *row, int n_vocab)
{
    std::vector<int> order(n_vocab);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + 11, order.end(),
                      [row](int a, int b) { return row[a] > row[b]; });
    printf("top");
    for (int i = 0; i < 11; i++)
        printf(" %d:%.6g", order[i], row[order[i]]);
    printf("\n");
}

static void print_logits(llama_context *context, const std::vector<llama_token> &ids, int n_vocab,
                         const std::vector<llama_token> &positions)
{
    evaluate(context, ids.data(), ids.size(), 0, true);
    for (llama_token pos : positions) {
        const float *row = llama_get_logits_ith(context, pos);
        printf("pos %d\n", pos);
        print_top(row, n_vocab);
        print_projections(row, n_vocab);
    }
}

static std::vector<llama_token> tokenize(const llama_vocab *vocab, const char *text)
{
    std::vector<llama_token> ids(strlen(text) + 8);
    int n = llama_tokenize(vocab, text, (int32_t)strlen(text), ids.data(), (int32_t)ids.size(),
                           true, false);
    if (n < 0)
        fail("the text cannot be tokenized");
    ids.resize((size_t)n);
    return ids;
}

static void print_ids(const char *name, const std::vector<llama_token> &ids)
{
    printf("%s", name);
    for (llama_token id : ids)
        printf(" %d", id);
    printf("\n");
}

// Prints the ids of the prompt, the ids of its greedy continuation, by how much each was ahead of
// the second choice at least, and the text of both.
static void print_story(llama_context *context, const llama_vocab *vocab, const char *text, int n)
{
    std::vector<llama_token> prompt = tokenize(vocab, text), ids;
    int n_vocab = llama_vocab_n_tokens(vocab);
    llama_pos pos = (llama_pos)prompt.size();
    float gap = INFINITY;
    evaluate(context, prompt.data(), prompt.size(), 0, false);
    while ((int)ids.size() < n) {
        float *row = llama_get_logits_ith(context, -1);
        ids.push_back((llama_token)(std::max_element(row, row + n_vocab) - row));
        float best = row[ids.back()];
        row[ids.back()] = -INFINITY;
        gap = std::min(gap, best - *std::max_element(row, row + n_vocab));
        evaluate(context, &ids.back(), 1, pos++, false);
    }
    print_ids("prompt", prompt);
    print_ids("ids", ids);
    printf("gap %.3g\n", gap);
    ids.insert(ids.begin(), prompt.begin(), prompt.end());
    std::vector<char> out(ids.size() * 64);
    int len = llama_detokenize(vocab, ids.data(), (int32_t)ids.size(), out.data(),
                               (int32_t)out.size(), true, false);
    if (len < 0)
        fail("the story cannot be detokenized");
    printf("text\n%.*s", len, out.data());
}

int main(int argc, char **argv)
{
    if (argc != 5)
        fail("usage: llama_logits MODEL IDS logits POSITIONS | MODEL TEXT story N");
    llama_log_set(
        [](ggml_log_level level, const char *text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR)
                fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = false;
    llama_model *model = llama_model_load_from_file(argv[1], params);
    if (model == nullptr)
        fail("the model cannot be loaded");
    const llama_vocab *vocab = llama_model_get_vocab(model);
    bool story = strcmp(argv[3], "story") == 0;
    std::vector<llama_token> ids = story ? tokenize(vocab, argv[2]) : parse_ids(argv[2]);
    int n = story ? atoi(argv[4]) : 0;
    llama_context *context = open_context(model, (uint32_t)ids.size() + (uint32_t)n);
    if (context == nullptr)
        fail("no context");
    if (story)
        print_story(context, vocab, argv[2], n);
    else
        print_logits(context, ids, llama_vocab_n_tokens(vocab), parse_ids(argv[4]));
    llama_free(context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
