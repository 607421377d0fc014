/*
 * vocab_special.c - special tokens in text: a trie of their texts, asked at every place where one
 * may start. The leftmost wins, of those that start together the longest.
 */
#include "base/mem.h"
#include "text/vocab/vocab_internal.h"

static uint32_t find_child(const struct pi_vocab *v, uint32_t node, uint8_t byte)
{
    uint32_t child = v->trie[node].child;
    while (child != 0 && v->trie[child].byte != byte)
        child = v->trie[child].next;
    return child;
}

/* Of tokens with the same text the first stays. The trie has room for the text. */
static void insert(struct pi_vocab *v, const char *text, size_t len, int32_t id)
{
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)text[i];
        uint32_t child = find_child(v, node, byte);
        if (child == 0) {
            child = v->n_trie++;
            v->trie[child] =
                (struct pi_trie_node){.next = v->trie[node].child, .id = -1, .byte = byte};
            v->trie[node].child = child;
        }
        node = child;
    }
    if (v->trie[node].id < 0)
        v->trie[node].id = id;
}

pith_status pi_vocab_load_special(struct pi_vocab *v, pith_error *err)
{
    size_t n_node = 1; /* the root, and at most one node per byte: below 2^32, as text is */
    for (int32_t id = 0; id < v->n_id; id++) {
        if ((v->attr[id] & PI_TOKEN_SPECIAL) != 0)
            n_node += v->token[id].piece_len;
    }
    v->trie = pi_mem_alloc_n(PI_MEM_MODEL, n_node, sizeof(*v->trie));
    if (v->trie == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for special tokens");
    v->trie[0].id = -1;
    v->n_trie = 1;
    for (int32_t id = 0; id < v->n_id; id++) {
        const struct pi_token *token = &v->token[id];
        if ((v->attr[id] & PI_TOKEN_SPECIAL) == 0 || token->piece_len == 0)
            continue;
        insert(v, v->text + token->piece, token->piece_len, id);
        uint8_t first = (uint8_t)v->text[token->piece];
        v->starts[first] |= pi_token_user_only(v->attr[id]) ? PI_STARTS_USER : PI_STARTS_CONTROL;
    }
    return PITH_OK;
}

int32_t pi_special_at(const struct pi_vocab *v, const char *text, size_t len, bool all)
{
    int32_t found = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        node = find_child(v, node, (uint8_t)text[i]);
        if (node == 0)
            break;
        int32_t id = v->trie[node].id;
        if (id >= 0 && (all || pi_token_user_only(v->attr[id])))
            found = id;
    }
    return found;
}
