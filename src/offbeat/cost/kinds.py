"""kind_of: the class of an operator. Kernels of one class share one model."""

import re

import torch

# The first pattern that matches the bare name decides; `_backward` and `_` (in place) are cut off before.
_PATTERNS = [
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("optimizer", r"_fused_(adam|adamw|sgd|adagrad)"),
        ("foreach", r"_foreach_.*"),
        ("matmul", r"mm|addmm|bmm|baddbmm|mv|addmv|dot|vdot|_scaled_mm|addbmm|linear|_addmm_activation|addr|outer"),
        ("convolution", r".*convolution(_overrideable)?|_slow_conv.*|.*conv_depthwise.*"),
        ("attention", r".*(scaled_dot_product|flash|efficient).*attention.*"),
        ("batch_norm", r".*batch_norm.*"),
        ("row_norm", r".*(layer_norm|group_norm|rms_norm|weight_norm).*"),
        ("recurrent", r".*_rnn(_layer)?"),
        ("softmax", r"_safe_softmax|_(log_)?softmax(_data)?|_(log_)?softmax_backward_data|_masked_softmax"),
        ("pool", r".*(pool\d?d?|upsample).*"),
        ("gather", r"embedding|index|index_select|gather|take|take_along_dim|nll_loss\d?d?_forward|_unsafe_index"),
        ("scatter", r"embedding_dense|_?(unsafe_)?index_put(_impl)?|scatter.*|index_add|index_copy|nll_loss\d?d?"
                    r"|_embedding_bag.*|index_fill|masked_scatter"),
        ("random", r"native_dropout|bernoulli|rand.*|normal|uniform|exponential|multinomial|_fused_dropout"),
        ("copy", r"_to_copy|clone|copy|cat|stack|constant_pad_nd|contiguous|fill|zero|zeros.*|ones.*|full.*|new_zeros"
                 r"|new_ones|new_full|slice|select|repeat|roll|flip|as_strided|arange|eye|tri[lu]|scalar_tensor"
                 r"|slice_scatter|select_scatter|unfold|col2im|im2col|reflection_pad.*|replication_pad.*"),
        ("reduction", r"sum|mean|amax|amin|max|min|prod|var|var_mean|std|std_mean|argmax|argmin|any|all|norm|cum.*"
                      r"|linalg_vector_norm|logsumexp|nansum|count_nonzero|aminmax|_fused_moving_avg.*"),
        ("elementwise", r"hardswish|glu|log_sigmoid(_forward)?|_prelu_kernel|rrelu_with_noise|_masked_scale"
                        r"|(mse|huber|smooth_l1|soft_margin)_loss|binary_cross_entropy.*"),  # torch does not tag these
        ("sort", r"sort|topk|argsort|unique.*|_unique2|kthvalue|median|searchsorted"),
    )
]  # fmt: skip

KINDS = (*(kind for kind, _ in _PATTERNS), "other")


def kind_of(operator: torch._ops.OpOverload) -> str:
    """The class of an operator: a matter of its name, and of torch's tag for what works element by element."""
    name = operator._schema.name.partition("::")[2]
    bare = re.sub(r"(_backward)?_?$", "", name)
    pointwise = torch.Tag.pointwise in operator.tags
    for kind, pattern in _PATTERNS:
        if pattern.fullmatch(bare) and not (pointwise and kind == "reduction"):  # max(x, y) is none
            return kind
    return "elementwise" if pointwise or _backward_of_pointwise(bare) else "other"


def _backward_of_pointwise(bare: str) -> bool:
    """Whether `gelu`, of `gelu_backward`, works element by element: torch tags the forward alone."""
    packet = getattr(torch.ops.aten, bare, None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()
    )
