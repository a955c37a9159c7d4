"""Phrases of random programs that Theano and PyTensor share, by section of the vocabularies (see `fuzz_program`)."""

COMMON = {
    "LOSSES": """
n; n -> n: T.log1p(({0} - {1}) ** 2 / 4) * 2.5
n; n ->: ({0} * {1}).sum() / {1}.sum()
b:n; n ->: T.switch({0}, {1}, 0).sum() / {0}.sum()
""",
    "MODELS": """
n d; d e; e -> n e: T.SAFE(T.dot({0}, {1}) + {2})
n d; d -> n: T.dot({0}, {1}) * <<1|{c}|{0}.mean()|{0}[:, 0]>>
n t d; b:n t -> n d: ({0} * {1}[:, :, None]).sum(axis=1) / T.maximum({1}.sum(axis=1), 1)[:, None]
c d; l:n -> n d: {0}[{1}]
c d; l:n; n d -> n: ({0}[{1}] * {2}).sum(axis=-1)
c; l:n; n -> c: T.inc_subtensor(T.zeros_like({0})[{1}], {2})
""",
    "SEQUENCES": """
t n d; d -> n d: scan(lambda x, h, b: h * 0.9 + x * b, [{0}], [T.zeros_like({0}[0])], [{1}])[<<-1|0>>]
t n -> t n: scan(lambda x, h: T.sin(x) + 0.5 * h, [{0}], [T.zeros_like({0}[0])])
n d; d -> n d: scan(lambda h, b: T.tanh(h * b), [], [{0}], [{1}], n_steps=3)[-1]
n d; d -> d: scan(lambda h, x: h + 0.1 * (x * h).<<mean|sum>>(axis=0), [], [{1}], [{0}], n_steps=2)[-1]
n d -> n d: scan(lambda x, h: h + x, [{0}], [T.zeros_like({0}[0])])
n d -> d: scan(lambda x, h: h + x, [{0}], [T.zeros_like({0}[0])])[-1]
n t; 2 -> n:
    scan(lambda x, a, b, w: w[0] * a + w[1] * b + x, [{0}.T], [dict(initial=T.zeros((2, {0}.shape[0])), taps=[-2, \
    -1])], [{1}])[-1]
""",
    "LINEAR": """
n d d -> n d: T.diagonal({0}, axis1=1, axis2=2)
n d; n d ->: T.<<sum|mean>>(({0}[:, None] - {1}[None]) ** 2)
d; e -> d e: T.outer({0}, {1})
n; d -> n d: T.outer({0}, {1})
""",
    "SHAPES": """
n d -> n: {0}[:, <<0|-1>>]
n d -> d: <<{0}[0]|{0}[-1]|{0}[{0}.shape[0] // 2]>>
n d ->: <<{0}[:2]|{0}[1:]|{0}[:-1]|{0}[:{0}.shape[1]]|{0}[::2]>>.sum()
n d; n d -> n d: <<T.concatenate([{0}, {1}], axis=0)[:{0}.shape[0]]|T.stack([{0}, {1}])[1]>>
n d; n d ->: T.concatenate([{0}, {1}], axis=0).<<mean|max|std|sum>>()
n d; n e -> n: T.concatenate([{0}, {1}], axis=1).<<max|mean|prod>>(axis=1)
n d -> n d: {0} / <<{0}.shape[0]|{0}.size|{0}.shape[1]|T.sqrt({0}.shape[0])>>
n d; d -> n d: T.tile({1}, ({0}.shape[0], 1)) * {0}
n d; d -> n d: T.alloc({1}, {0}.shape[0], {1}.shape[0])
n d -> n d: T.<<ones|zeros>>(({0}.shape[0], {0}.shape[1])) + {0}
n d -> n d: T.<<ones_like|zeros_like>>({0}) - {0}
n d -> n: T.arange({0}.shape[0]) * {0}.sum(axis=1)
n -> n: {0} * T.arange({0}.shape[0]) / {0}.shape[0]
n ->: (T.arange({0}.shape[0]) * {0}).sum()
n d -> n d: {0} * (T.arange({0}.shape[1]) < {0}.shape[0])
n d; d d -> n d: {0} + T.eye({0}.shape[0], {0}.shape[1])
n d e -> d n e: {0}.swapaxes(0, 1)
d n e -> n d e: {0}.dimshuffle(1, 0, 2)
t n -> n t: {0}.T
n t -> t n: {0}.T
n d -> n d: T.repeat({0}, 2, axis=<<0|1>>).reshape(({0}.shape[0], 2, {0}.shape[1])).mean(axis=1)
n d -> n d: T.split({0}, [1, {0}.shape[1] - 1], n_splits=2, axis=1)[1].sum(axis=1, keepdims=True) + {0}
n d; l:n -> n: {0}[T.arange({0}.shape[0]), {1} % {0}.shape[1]]
n d -> n d: T.set_subtensor({0}[:, 0], <<0|{c}|{0}.mean()|{0}.sum(axis=1)>>)
n d ->: {0}.sum() / {N}
n -> n: {0} + T.arange({N})
n -> n: T.concatenate([{0}[:, None], T.ones(({N}, 1))], axis=1).sum(axis=1)
""",
    "ELEMENTS": """
n d -> n d: T.SAFE({0})
n -> n: T.SAFE({0})
d -> d: T.SAFE({0})
 ->: T.ELEMENTWISE({0}) * 1.0
n d -> n d: T.ELEMENTWISE({0}) * 1.0
n d; n d -> n d: {0} <<+|-|*|/>> {1}
n d;  -> n d: {0} <<+|-|*|/>> {1}
n; n -> n: {0} <<+|-|*|/>> {1}
d; d -> d: {0} <<+|-|*>> {1}
d;  -> d: {0} <<+|-|*|/>> {1}
;  ->: {0} <<+|-|*|/>> {1}
n d; n d -> n d: T.switch({0} > {1}, {0}, <<{1}|{0}.max()|{1}.mean(axis=0)|{c}>>)
n d -> n d: T.clip({0}, -1, <<1|{0}.mean()|{0}.max()>>)
n d -> n d: {0} <<**2|** 3|* {c}|/ {c}|+ {c}|// {c}|% 2>>
n d -> n d: T.cast({0}, '<<float32|float16|int32|int8|bool>>') * {0}
n d; b:n -> n d: T.where({1}[:, None], {0}, <<0|{0}.mean(axis=0)|nan>>)
b:n; b:n -> n: (({0} <<&|^>> {1}) <<&|^>> ~{0}) * 1.0
i:n -> n: ({0} <<//|%|&|^>> 3) / 2
i:n d; i:d -> n d: ({0} * {1}) / {c}
""",
    "REDUCTIONS": """
n d ->: {0}.<<sum|mean|std|var|max|min|prod>>()
n d -> d: {0}.<<sum|mean|std|var|max|min|prod>>(axis=0)
n d -> n: {0}.<<sum|mean|std|var|max|min|prod|argmax|argmin>>(axis=1) * 1.0
n ->: {0}.<<sum|mean|std|var|max|min|prod>>()
d ->: {0}.<<sum|mean|max|prod|argmax>>() * 1.0
n d e -> n d: {0}.<<sum|mean|max|min>>(axis=2)
n d e -> d e: {0}.<<sum|mean|max|min>>(axis=0)
n d e -> e: {0}.<<sum|mean|max|var>>(axis=(0, 1))
t n d -> d: {0}.<<sum|mean|max|var>>(axis=(0, 1))
t n d -> n d: {0}.<<sum|mean|max>>(axis=0)
n d ->: T.<<any|all>>({0} > {c}) * 1.0
n d -> d: T.<<any|all>>({0} > {c}, axis=0) * 1.0
n d ->: ({0} > {c}).<<sum|mean>>() * 1.0
i:n d -> d: {0}.<<sum|prod|max|min|mean>>(axis=0) / {c}
b:n d -> d: {0}.<<sum|any|all|mean|prod|max>>(axis=0) * 1.0
n ->: {0}.<<argmax|argmin>>() * 1.0
n d -> d: ({0} * {0}.shape[0]).mean(axis=0) - {0}.sum(axis=0) ** 2 / {0}.shape[0]
n d -> d: T.<<sqrt|log|tanh|exp>>(T.sqr({0}).<<sum|mean>>(axis=0))
n ->: {0}.sum() / T.sqrt(T.sqr({0}).sum())
n; n ->: T.<<sum|mean>>(({0} - {0}.mean()) * ({1} - {1}.mean())) / ({0}.std() * {1}.std())
n;  ->: T.sum({0} > {1}) / {0}.size
""",
    "ALGORITHMS": """
n; c -> n: {1}[T.clip(T.floor({0}), 0, {1}.shape[0] - 1).astype('int64')]
c; l:n -> n c: T.set_subtensor(T.zeros(({1}.shape[0], {0}.shape[0]))[T.arange({1}.shape[0]), {1}], 1)
n d -> n d: T.argsort(T.argsort({0}, axis=1), axis=1) * 1.0
n d -> n: T.sort({0}, axis=1)[:, -1] - T.sort({0}, axis=1)[:, 0]
n d -> d d: T.dot({0}.T, {0}) / T.outer({0}.std(axis=0) + 1, {0}.std(axis=0) + 1)
n d -> n d d: {0}[:, None, :] - {0}[:, :, None]
n d -> d: {0}[None].mean(axis=(0, 1))
n d; n d -> n d: T.stack([{0}, {1}], axis=<<0).max(axis=0|1).mean(axis=1|-1).sum(axis=-1>>)
n d; n -> d: ({0} * {1}[:, None]).sum(axis=0) / T.abs({1}).sum()
n d -> 2: {0}.shape * 1.0
n d ->: <<{0}.size|{0}.shape[0] - 1|{0}.shape[0] ** 2|{0}.shape.prod()|{0}.shape[0] % 3>> * 0.5
n d -> n d: {0} * <<T.minimum({0}.shape[0], 3)|1.0 / {0}.shape[0] ** 2|({0}.shape[0] > 3)|{0}.shape[0] // 2>>
n d -> n d: T.switch(T.eq({0}.shape[0], {0}.shape[1]), {0}, {0} * 2)
n d -> d: {0}.sum(axis=0) / T.maximum({0}.shape[0] - 1, 1)
n d;  -> n d: {0} - {1} ** {0}.shape[0]
n d -> n d: T.switch({0} > {0}.mean(axis=0) + {0}.std(axis=0), {0}.mean(axis=0), {0})
n d; d ->: ({0} - {1}).<<max|min>>(axis=0).<<sum|max>>() * {1}.sum()
n d -> d: 255 - (-{0}).max(axis=0)
n d -> n d: {0} / T.maximum(1, T.sqrt(T.sqr({0}).sum()) / {c})
n d ->: T.sqr({0} / {0}.sum()).sum()
n d e -> d: T.sqr({0}.mean(axis=0)).<<sum|max>>(axis=1)
n t; b:n t ->: ({0} * {1}).sum() / {1}.sum()
""",
    "TRAPS": """
n d; l:n -> n d: <<{0}[{1}]|{0}[T.argsort({1})]|{0}[T.argsort({0}[:, 0])]|{0}[T.arange({0}.shape[0])[::-1]]>>
n d; l:n -> n n: {0}[:, {1}]
d c; l:n -> d n: <<{0}[:, {1} % {0}.shape[1]]|T.take({0}, {1} % {0}.shape[1], axis=1)>>
c; l:n -> n: T.take({0}, {1} * 3 - 5, mode='<<wrap|clip>>')
c d; l:n; n -> c d: T.<<inc|set>>_subtensor({0}[{1} % {0}.shape[0], {1} % {0}.shape[1]], {2})
c d; l:n; n c -> c d: T.inc_subtensor({0}[:, {1} % {0}.shape[1]], {2}.T)
c; l:n -> c: T.<<set|inc>>_subtensor(T.zeros_like({0})[{1}], 1.0)
n ->: <<T.flatnonzero({0} > 0)|T.nonzero_values({0})>>.<<sum|max>>() * 1.0
n d; c n -> c d: T.dot({1}, {0})
n d; n n -> n d: T.dot({1}, {0})
n; n -> n: T.switch(T.eq(T.arange({0}.shape[0]), 0), {1}, {0})
n d -> n d: T.concatenate([{0}[:, -1:], {0}[:, :-1]], axis=1)
n d ->: T.max({0}, axis=0).argmax() * 1.0
n d -> n: {0}[T.arange({0}.shape[0]), T.argmax({0}, axis=1)]
n d -> n: {0}[T.arange({0}.shape[0]), {0}.mean(axis=0).argmax()]
""",
    "CONDITIONS": """
n d;  -> n d: ifelse({1} > 0, {0} * 2, {0} - 1)
n d; d -> d: ifelse({0}.sum() > 0, {1}, {0}.mean(axis=0))
n;  ->: T.switch({0}.mean() > {1}, {0}.max(), {1})
n d; d -> n d: T.switch({0}.mean(axis=0) > {1}, {0}, 0)
""",
    "ENDINGS": """
; @ -> @: grad({0}, {1})
n; @ -> @: grad({0}.<<sum|mean>>(), {1})
n d; @ -> @: grad(T.<<sum|mean|max>>(<<{0}|T.tanh({0})|{0} ** 2>>), {1})
d; @ -> @: grad(T.<<sum|mean>>(<<{0}|T.tanh({0})>>), {1})
d e; @ -> @: grad(T.<<sum|mean>>(<<{0}|T.tanh({0})>>), {1})
n; @ -> @: hvp({0}.<<sum|mean>>(), {1})
n d; @ -> @: hvp(T.tanh({0}).<<sum|mean>>(), {1})
; @ -> @: hvp({0}, {1})
; @ -> @: {1} - 0.1 * grad({0}, {1}) / T.sqrt(T.sqr(grad({0}, {1})).sum() + 1)
""",
}
