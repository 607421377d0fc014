/*
 * keep.h - which entries stay: the policy of an engine at work. The engine asks it when a round is
 * due and how much memory that takes. It shows it the results of passes, and lets it evict or
 * overwrite. Only kv/ changes the cache.
 *
 * policy.h is for those who write a policy, and options.h for those who read or estimate options.
 */
#ifndef PI_KEEP_H
#define PI_KEEP_H

#include "policy/keep/rules/options.h"

/* ---- the policy of an engine ---- */

/* The policy of an engine, with the scratch of a round. One thread at a time uses it. */
struct keep;

/* *out is NULL for the full cache. config was fitted to model->g; *model is copied, what it points
   to is borrowed until keep_free. Rounds run on at most n_thread threads, which changes no result.
   Opens the policy: its statuses; NOMEM. */
pith_status keep_create(const struct keep_config *config, const struct policy_model *model,
                        int32_t n_thread, struct keep **out, pith_error *err);
void keep_free(struct keep *keep); /* NULL is ignored */
const struct keep_config *keep_get_config(const struct keep *keep);
/* Bytes of the block that each sequence has for the policy; 0: none. */
size_t keep_state_size(const struct keep *keep);
/* Whether the policy, with its options, scores by a state that devices can learn. */
bool keep_remembers(const struct keep *keep);
/* Whether the lanes' device learns what the policy remembers, so that blocks are there, too. */
bool keep_learns(const struct keep *keep);

/* Such a block: all of it is the caller's, and keep_view has the same two. */
struct keep_block {
    void *state;        /* [keep_state_size] owned */
    struct pi_at there; /* likewise of the device; none where that does not learn; owned */
};

/* Zeroed; NOMEM. Freeing takes any stage. */
pith_status keep_block_make(const struct keep *keep, struct keep_block *out, pith_error *err);
void keep_block_free(const struct keep *keep, struct keep_block *block);
void keep_block_copy(const struct keep *keep, const struct keep_block *from,
                     const struct keep_block *to);
/* The host's bytes become all of it; and the device's what the host has. */
void keep_block_pull(const struct keep *keep, const struct keep_block *block);
void keep_block_push(const struct keep *keep, const struct keep_block *block);
/* Bytes of scratch that grew with the lanes so far. */
size_t keep_scratch_bytes(const struct keep *keep);
/* Their bound while one sequence, whose lanes agree where the policy wants that, grows to n_token
   tokens, and rounds run on n_thread threads. keep is as before then. */
size_t keep_scratch_at(struct keep *keep, int32_t n_token, int32_t n_thread);
/* Whether such a block from a file can be a state. */
bool keep_state_sound(const struct keep *keep, const void *state);
/* keep_config_needs and keep_config_marks of its options. */
uint32_t keep_needs(const struct keep *keep);
int32_t keep_n_mark(const struct keep *keep);
/* Whether full lanes are overwritten (rule overwrite). */
bool keep_overwrites(const struct keep *keep);

/* The work of rounds for a sequence. */
struct keep_tally {
    int64_t n_round;
    int64_t n_evicted;     /* entries, over all lanes */
    int64_t bytes_freed;   /* of pages that rounds gave back, less the copies that they took */
    int32_t first_at;      /* tokens in the sequence at the first round; valid when n_round > 0 */
    double seconds;        /* spent in rounds */
    int64_t n_overwritten; /* of n_evicted: those whose place a token took */
    int32_t first_overwrite_at; /* tokens in the sequence before the first of them went; valid when
                                   n_overwritten > 0 */
    int64_t elsewhere;          /* entries of other ranks' lanes that share the budget, counted */
    int32_t elsewhere_at;       /* when the sequence had this many tokens */
};

/* ---- when rounds come ---- */

/* Whether an evaluation of n_token tokens has no round before its end: with rounds=prompt-end
   evaluations of several tokens have none. Then keep_room and keep_due are not asked about it; a
   round runs when its last token is in, if keep_over_budget says so. */
bool keep_waits(const struct keep *keep, int32_t n_token);

/* INVALID, with the numbers, when the prompt is pinned and some lane's budget does not hold it.
   keep NULL: the full cache, which holds every prompt. */
pith_status keep_check_prompt(const struct keep *keep, struct keep_point at, pith_error *err);

/* With overwrite=on an evaluation of a single token is a step, one of more is part of a prompt. A
   prompt has rounds as ever, and another behind its last token where a lane holds its budget then.
   A step has one before it where a lane that holds its budget has no chosen victim. These rounds
   leave a lane one entry less than its budget. The functions below take an evaluation of one token
   for a step; keep_room and keep_due are asked about prompts alone, and keep_step_due about
   steps. */

/* How many of the next `most` tokens can be appended to a sequence until a round is due: 0 when one
   is due now. It depends on the tokens' number and the lanes' lengths alone. So a sequence has its
   rounds at the same tokens however its evaluation is cut. */
int32_t keep_room(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
                  int32_t most);

/* Whether a round is to run now, with n_left more tokens to come in this evaluation. */
bool keep_due(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
              int32_t n_left);

/* Whether a step must wait for a round; false where nothing is overwritten. */
bool keep_step_due(const struct keep *keep, const struct kv_seq *kv, struct keep_point at);

/* The most entries that a lane comes to hold while n tokens follow. */
int64_t keep_longest(const struct keep *keep, const struct kv_seq *kv, struct keep_point at,
                     int32_t n);

/* Makes sure that n more tokens with all their rounds need no memory but pages: page tables, and
   the scratch of a round. INVALID as keep_check_prompt; NOMEM, CONTEXT leave what was. */
pith_status keep_prepare(struct keep *keep, struct kv_seq *kv, struct keep_point at, int32_t n,
                         pith_error *err);

/* Bytes of pages that must be free, beyond the ones that the lanes hold and have reserved. With
   them n more tokens with all their rounds succeed, whatever the policy chooses. It charges the
   pages that the sequence shares (kv_seq_charge_copies): the counts of several sequences add up,
   and kv_seq_clear_charges ends them. */
struct kv_need keep_lacks(const struct keep *keep, struct kv_seq *kv, struct keep_point at,
                          int32_t n);

/* Whether some lane holds more than its budget, so that a round is worth while. With overwrite=on
   also where one holds its budget and has no chosen victim. */
bool keep_over_budget(const struct keep *keep, const struct kv_seq *kv, struct keep_point at);

/* Makes sure that a round now, before it is due, can run: scratch, and pages for copies of shared
   ones. INVALID as keep_check_prompt; NOMEM, KV_FULL leave what was. */
pith_status keep_prepare_round(struct keep *keep, struct kv_seq *kv, struct keep_point at,
                               pith_error *err);

/* ---- overwriting (steps.c) ---- */

/* Whether the lanes that keep the same positions hold the same ones, slot by slot: always, but in a
   sequence that comes from a file. */
bool keep_lanes_agree(const struct keep *keep, const struct kv_seq *kv);

/* Rows of scores for n_item steps in one pass, of lanes of at most `longest` entries; lanes_differ:
   where some sequence's lanes do not agree. NOMEM leaves what was. */
pith_status keep_steps_reserve(struct keep *keep, int32_t n_item, int64_t longest,
                               bool lanes_differ, pith_error *err);

/* The notes that a policy's words for marks are in one lane, out [KV_NOTE_ROOM]; their number. */
int32_t keep_mark_notes(const struct keep_config *config, const struct keep_view *view,
                        int32_t layer, int32_t head, struct kv_note *out);

/* Says what is noted of a watched lane's weights, and whether the policy looks at rows. item: of a
   step its number in the pass; -1: no step. view as for keep_round. */
void keep_plan_lane(const struct keep *keep, const struct keep_view *view, int32_t item,
                    struct pi_pass_watched *lane);

/* Shows a policy that looks at rows the attention of a token's queries in a lane, and of a step
   takes the scores. One thread for each lane, and of it the tokens in order; thread is below the
   number that keep_create was told. The fields of a for step are filled in here. */
void keep_attended(const struct keep *keep, const struct keep_view *view, struct keep_attention *a,
                   int32_t item, int32_t thread);

/* Once all KV heads of a layer have attended: chooses the entry that the next step overwrites in
   each lane that holds its budget. It sets that as the lane's victim (kv_seq_set_victim).
   lanes_differ: keep_lanes_agree does not hold. Different items at the same time. */
void keep_choose_victims(const struct keep *keep, struct kv_seq *kv, const struct keep_view *view,
                         int32_t layer, int32_t item, bool lanes_differ);

/* Where the lanes' device chooses, keep_choose_victims leaves it to that. The first lists the
   work of a layer of one item, the second has it done for all. keep_set_victims gives an item's
   lanes the result, behind the pass. keep_learn_victims comes before that, once. One thread calls
   them. */
void keep_list_victims(struct keep *keep, const struct kv_seq *kv, const struct keep_view *view,
                       int32_t layer, int32_t item);
void keep_find_victims(struct keep *keep, struct pi_stream *stream);
void keep_learn_victims(struct keep *keep);
void keep_set_victims(const struct keep *keep, struct kv_seq *kv, int32_t item);

/* Lanes whose next entry overwrites one. */
int32_t keep_count_victims(const struct keep *keep, const struct kv_seq *kv);

/* Adds the entries that a token overwrote in n_lane lanes of a sequence of n_token tokens. */
void keep_tally_overwritten(struct keep_tally *tally, int32_t n_lane, int32_t n_token);

/* ---- what the policy is shown ---- */

/* Shows the policy the rows of a pass; only where it needs them. view as for keep_round. */
void keep_observe(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_tap_rows *rows);

/* Whether it would look at a layer's next rows; only where it needs rows. */
bool keep_observes(const struct keep *keep, const struct keep_view *view, int32_t layer);

/* Where keep_learns: what the device does in the place of that, with the rows of an item. The
   caller asks it. */
void keep_learn(const struct keep *keep, const struct keep_view *view,
                const struct pi_pass_rows *rows, int32_t item, struct kv_learn_job *job);

/* Shows the policy entries that a pass wrote; only where it needs it. view as for keep_observe.
   Different lanes at the same time. */
void keep_written(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_written *w);

/* Whether the lanes' device does so in the place of the policy, and how. */
bool keep_predicts(const struct keep *keep);
void keep_predict(const struct keep *keep, const struct keep_view *view,
                  const struct pi_pass_entries *rows, int32_t at, struct kv_predict_job *job);

/* Shows the policy what repeating a text looked at in one lane; only where it needs it. view as for
   keep_round. Different lanes at the same time. */
void keep_repeated(const struct keep *keep, const struct keep_view *view,
                   const struct keep_repeat *r);

/* Whether the policy can wish to end an evaluation that can be taken back, and whether it has
   wished to end one. Asking forgets it. keep NULL: no. */
bool keep_may_stop(const struct keep *keep);
bool keep_stopped(const struct keep *keep);
/* Whether one thread alone shows it entries. */
bool keep_is_alone(const struct keep *keep);

/* ---- rounds ---- */

/* Positions that may go: lo <= position < hi. */
struct keep_span {
    int32_t lo;
    int32_t hi;
};

/* Which n_evict go of n entries at ascending positions, of those in the span: the lowest scores, of
   equals the older first. With segments the span is cut into that many parts of equal length. Of
   each part goes its share of n_evict, rounded down, and then the lowest of the rest
   (docs/policies.md). Once the choice is made, keep_rest leaves in slots [n] those that stay,
   ascending, and returns their number. */
struct kv_choose_job keep_choice(const int32_t *pos, const float *score, int32_t n,
                                 struct keep_span span, int32_t segments, int32_t n_evict,
                                 int32_t *slots);
int32_t keep_rest(const struct kv_choose_job *choice, const int32_t *pos, int32_t n,
                  int32_t *slots);

/* A function that is told which entries rounds evict. */
struct keep_witness {
    void *user;
    /* Called before a lane of kv loses all entries but those at slots [n_kept], ascending.
       Different lanes come at the same time; thread is below the number that keep_create was
       told. */
    void (*dropped)(void *user, const struct kv_seq *kv, int32_t layer, int32_t head,
                    const int32_t *slots, int32_t n_kept, int32_t thread);
};

/* From now on rounds tell *witness, which is copied; NULL ends it. */
void keep_set_witness(struct keep *keep, const struct keep_witness *witness);

/* One round: brings every lane that holds more than its budget to the budget, with overwrite=on to
   one entry less, and gives whole pages back. Lanes that keep the same positions are brought to one
   set of them, also where they held different ones before. The memory that keep_lacks asked for is
   free, so that it succeeds. Of the view, model and data are filled in here. Adds to *tally. */
pith_status keep_round(struct keep *keep, struct kv_seq *kv, const struct keep_view *view,
                       struct keep_tally *tally, pith_error *err);

/* ---- lanes ---- */

/* The positions of the tokens that the first n slots of a lane are of, whatever they are read at
   (KEEP_NEED_PLACES). keep NULL: the full cache. */
void keep_positions(const struct keep *keep, const struct kv_seq *kv, int32_t layer, int32_t head,
                    int32_t *out, int32_t n);
/* The same of one slot. */
int32_t keep_position(const struct keep *keep, const struct kv_seq *kv, int32_t layer, int32_t head,
                      int32_t slot);

/* Drops every entry of a token at or above n_token (kv_seq_truncate). keep NULL: the full cache. */
void keep_truncate(struct keep *keep, struct kv_seq *kv, int32_t n_token);

#endif
