"""What Orthant's gates `switch`, `gshard` and `topk` compute, in PyTorch: documentation that runs. torch_moe.py trains
with it, and agree.py compares the losses with Orthant's.

Shapes: T tokens of a step (sequences * positions, one sequence after another), E experts, K choices of a token, G groups
of S tokens with T = G * S (a GShard group is one sequence unless moe.group_tokens says otherwise).
"""
import math

import torch
import torch.nn.functional as F

# --- Random numbers that are functions of (seed, purpose, site, step, index): Philox4x32-10 (Salmon et al., 2011) -----

SECOND_EXPERT = 4  # the purpose of the draws below
WORD = 0xFFFFFFFF


def uniform(seed, purpose, site, step, index):
    """Of each element of `index` (int64) a number in [0, 1) with 24 bits, f32. Words of 32 bits are held in int64: a
    product of two wraps around in its lower 64 bits, which are all that is used."""
    key0 = (seed & WORD) ^ (purpose * 0x9E3779B9 & WORD)
    key1 = (seed >> 32 & WORD) ^ site
    c0, c1 = index & WORD, index >> 32 & WORD
    c2, c3 = torch.full_like(index, step), torch.full_like(index, purpose)
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & WORD) ^ c1 ^ key0, p1 & WORD, (p0 >> 32 & WORD) ^ c3 ^ key1, p0 & WORD
        key0, key1 = key0 + 0x9E3779B9 & WORD, key1 + 0xBB67AE85 & WORD
    return (c0 >> 8).float() / 16777216


# --- Gates --------------------------------------------------------------------------------------------------------------


class Gate:
    """Which experts a token goes to, with which weights, and who finds a seat.

    switch  (Fedus et al., 2021): the likeliest expert; its probability is the weight.
    gshard  (Lepikhin et al., 2020): the two likeliest; weights sum to one; the second is kept with probability
            min(1, 2 * its weight), and counts for nothing in the balance loss.
    topk    (Shazeer et al., 2017): the K likeliest; weights sum to one (moe.normalize_weights, as in Mixtral), or are
            the probabilities.
    """

    def __init__(self, settings, layer):
        moe = settings["moe"]
        self.kind, self.experts, self.top_k = moe["router"], moe["experts"], moe["top_k"]
        self.normalize = self.kind == "gshard" or self.kind == "topk" and moe["normalize_weights"]
        self.counted = self.top_k if self.kind == "topk" else 1  # choices that the balance loss counts
        self.capacity_factor, self.group_tokens = moe["capacity_factor"], settings["sizes"]["group_tokens"]
        self.seed, self.site = settings["run"]["seed"], layer

    def choose(self, logits, valid, index, step):
        """logits [T, E]; valid bool [T], False for padding; index int64 [T], the token's number in the step. Returns
        expert [T, K], the likeliest first; weight [T, K] with its gradient; made bool [T, K]: whether it is a choice."""
        # A stable sort: of equal logits the lower expert comes first.
        expert = logits.detach().sort(dim=1, descending=True, stable=True).indices[:, :self.top_k]
        weight = logits.softmax(1).gather(1, expert)
        if self.normalize:
            weight = weight / weight.sum(1, keepdim=True)
        made = valid[:, None].expand(-1, self.top_k)
        if self.kind == "gshard":
            draw = uniform(self.seed, SECOND_EXPERT, self.site, step, index)
            made = made & torch.stack([torch.ones_like(valid), draw < 2 * weight.detach()[:, 1]], 1)
        return expert, weight, made

    def seats(self, valid):
        """Seats of an expert in each group [G]: ceil(factor * K * valid tokens / E), at least 1. The factor is taken as a
        whole number of millionths, so that 1.1 is 11/10 and not the double beside it."""
        if self.capacity_factor <= 0:
            return None  # dropless
        million = 1_000_000
        millionths = max(1, math.floor(min(self.capacity_factor, 2 * self.experts) * million + 0.5))
        even = millionths * self.top_k * valid.view(-1, self.group_tokens).sum(1)
        return (-(-even // (self.experts * million))).clamp(min=1)

    def seated(self, expert, made, valid):
        """bool [T, K]: the choices that find a seat. In a group all first choices are seated before the second ones, each
        in the order of the tokens; who finds the expert full is dropped."""
        seats = self.seats(valid)
        if seats is None:
            return made
        groups = len(seats)
        in_order = lambda of: of.view(groups, self.group_tokens, self.top_k).transpose(1, 2).reshape(groups, -1)  # [G, K S]
        wanted = F.one_hot(in_order(expert), self.experts) * in_order(made)[..., None]  # [G, K S, E]
        before = wanted.cumsum(1) - wanted
        fits = ((before < seats[:, None, None]) & (wanted > 0)).any(2)
        return fits.view(groups, self.top_k, self.group_tokens).transpose(1, 2).reshape(-1, self.top_k)

    def losses(self, logits, expert, valid):
        """Sums over valid tokens. Balance (Switch, equations 4 to 6), of each group by itself: E * sum_e f_e P_e with f_e
        the share of choices that went to e, before drops and chance, a constant, and P_e the mean probability. z (ST-MoE,
        equation 5): logsumexp squared."""
        count = F.one_hot(expert[:, :self.counted], self.experts).sum(1) * valid[:, None]  # [T, E]
        by_group = lambda of: of.view(-1, self.group_tokens, self.experts).sum(1)  # [G, E]
        count = by_group(count).to(logits.dtype)
        probability = by_group(logits.softmax(1) * valid[:, None])
        factor = self.experts / count.sum(1).clamp(min=1)
        balance = (factor * (count * probability).sum(1)).sum()
        z = (logits.logsumexp(1).square() * valid).sum()
        return balance, z
