/*
 * route.h - how a router's numbers become a choice of experts.
 */
#ifndef PI_DEVICE_ROUTE_H
#define PI_DEVICE_ROUTE_H

#include "device/device.h"

/*
 * Chooses a token's experts, the best first; of equal ones the lower number comes first.
 *   prob = softmax(logit), sigmoid(logit) or logit;  rank = prob + bias
 *   of groups, those stay whose two best ranks have the largest sums
 *   weight[i] = prob[chosen[i]], then softmax over the chosen, norm and scale as the rule says
 * logit [n_expert] is left as prob, rank [n_expert] is scratch, bias [n_expert] may be NULL.
 */
void pi_moe_route(const struct pi_moe_rule *rule, const float *bias, float *logit, float *rank,
                  int32_t *chosen, float *weight);

#endif
