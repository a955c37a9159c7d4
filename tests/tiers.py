"""Which tests belong to which tier: the one place that says so.

    quick      make quick       threads and the NumPy engine: under a minute
    (the rest) make test        and every feature on real processes with Theano or PyTensor: what a newcomer runs
    thorough   make test-all    and the same in more worlds, longer programs, OpenCL devices
    long       make test-long   what does not fit into any of these

A test has at most one of the markers; each tier runs those before it as well, but for `long`. `alone` is no tier: such a
test looks at the clock or at the processor, so nothing runs beside it (see `Turns`).
"""

import fcntl
import os
import re
from typing import NamedTuple


class Rule(NamedTuple):
    """The tests in a file or folder that get a marker: those in whose name the pattern is found."""

    marker: str
    path: str
    names: str = ""


#: Too slow for `make quick`: they start programs, call a compiler, or wait for a time-out.
SLOW = (
    Rule("", "tests/cli/"),
    Rule("", "tests/collectives/test_all_or_nothing.py"),
    Rule("", "tests/demos/"),
    Rule("", "tests/exact_programs/"),
    Rule("", "tests/extensions/test_checkpoint_extension.py", "a_kill"),
    Rule("", "tests/extensions/test_loader.py", "survives|does_not_end|late|deaths|meanwhile"),
    Rule("", "tests/extensions/test_recorder.py", "known_sleeps|test_loaders|inside_functions"),
    *[
        Rule("", f"tests/extensions/test_pymc_{name}.py")
        for name in ("bad_input", "nutpie", "precision", "requirement", "samplers", "sessions", "unavailable", "values")
    ],
    Rule("", "tests/engines/test_import_check.py"),
    Rule("", "tests/engines/test_import_fixes.py"),
    Rule("", "tests/engines/test_jax.py", "programs|meets"),
    Rule("", "tests/engines/test_pocl.py"),
    Rule("", "tests/engines/test_compiled_modules.py", "does_not_give"),
    # What is left of them shows that each rule does what it says.
    *[
        Rule("", f"tests/extensions/rules/test_{name}.py")
        for name in ("asynchronous", "closed_forms", "digits", "fragments", "moments", "resuming")
    ],
    Rule("", "tests/extensions/test_rates.py", "velocities"),
    Rule("", "tests/functions/test_steps_on_processes.py"),
    Rule("", "tests/healing/"),
    Rule("", "tests/host/test_affinity.py"),
    Rule("", "tests/host/test_heap.py"),
    Rule("", "tests/launchers/test_courier.py", r"test_all_reduce\[.*-[24]\]|test_sizes\[.*-[124]\]|hardly|rare|waits"),
    *[Rule("", f"tests/launchers/test_{name}.py") for name in ("fd_passing", "keeper", "local", "output", "rank_main")],
    Rule("", "tests/prediction/test_real_profiles.py"),
    Rule("", "tests/profiling/test_profiled_sessions.py", "program|add_up|full_disk|other_hosts|killed"),
    Rule("", "tests/program/"),
    Rule("", "tests/programs/"),
    Rule("", "tests/programs_2017/"),
    Rule("", "tests/project/test_benchmarks.py"),
    Rule("", "tests/project/test_docs.py"),
    Rule("", "tests/project/test_install.py"),
    Rule("", "tests/project/test_package.py"),
    Rule("", "tests/replication/test_distribute.py", "3000_chained|working_directory|forked_again"),
    Rule("", "tests/replication/test_prefetched_modules.py"),
    Rule("", "tests/replication/test_random_streams.py", "numbered|fork_takes"),
    Rule("", "tests/memory/test_pool.py", "2_gib|limit_of_address_space"),
    Rule("", "tests/runtime/test_session.py", "timeout|deadline|waited_for"),
    Rule("", "tests/sabotage/"),
    Rule("", "tests/transports/test_nccl.py"),
    # What takes longest of the rest.
    Rule("", "tests/collectives/", "large_arrays_of_odd_sizes|what_hosts_receive"),
    Rule("", "tests/engines/test_registry.py", "the_default|has_not_imported|without_an_import"),
    Rule("", "tests/extensions/rules/", r"every_step_is_that_of_the_simulation\[.*-[134]\]|test_start|in_an_exchange"),
    Rule("", "tests/extensions/test_loader.py"),
    Rule("", "tests/extensions/test_recorder.py", "test_plot"),
    Rule("", "tests/functions/test_batch_s.py"),
    Rule("", "tests/functions/test_call.py", "copied_into_memory|several_threads"),
    Rule("", "tests/functions/test_function_variants.py"),
    Rule("", "tests/functions/test_slices.py", "numbers_of_slices|batch_data"),
    Rule("", "tests/functions/test_steps.py", "no_memory|large_and_small"),
    Rule("", "tests/kernels/test_reduce_kernel.py", r"same_bits|without_a_value|test_weights"),
    Rule("", "tests/launchers/test_courier.py"),
    Rule("", "tests/memory/test_pool.py", "kill_leaves"),
    Rule("", "tests/profiling/test_browser.py"),
    Rule("", "tests/profiling/test_profiled_sessions.py"),
    Rule("", "tests/project/test_imports.py", "no_cycles"),
    Rule("", "tests/reductions/test_mean.py", r"\[(?!2-)|of_their_parts"),
    Rule(
        "", "tests/reductions/test_reductions.py", "but_for_rounding|bits_of_the_whole|slices_at_once|any_of_the_parts"
    ),
    Rule("", "tests/reductions/test_single_numbers.py", "one_by_one"),
    Rule("", "tests/replication/test_random_streams.py"),
    Rule("", "tests/runtime/test_session.py", "of_any_length"),
    Rule("", "tests/sync/test_bell.py", "until_it_is_cleared"),
    Rule("", "tests/transports/test_values.py", r"every_rank_has"),
    # Of the worlds and of the numbers of ranks, two ranks and the middle one of three as the root are enough.
    Rule("", "tests/", r"fork-|hosts-|\b(1-root0|2-root1|3-root0|3-root2)\b"),
)

#: The markers of all others.
RULES = (
    # Of several hosts some collectives and one call of each kind; every message takes two processes more.
    Rule("long", "tests/functions/", r"3 hosts-"),
    Rule("long", "tests/replication/", r"3 hosts-"),
    Rule("thorough", "tests/", r"3 hosts-"),
    Rule("thorough", "tests/collectives/", r"arguments.*2 hosts-|many_variables.*2 hosts-"),
    Rule("thorough", "tests/functions/", r"\[(?!.*test_steps).*2 hosts-"),
    Rule("thorough", "tests/replication/", r"2 hosts-"),
    # On devices, which compile everything once more, all but what collectives and means are made of.
    Rule("thorough", "tests/gpu/", r"^(?!.*\[(hosts|mean|collectives|forms|0[2-6].*)\])"),
    Rule("long", "tests/gpu/", r"\[(mean|collectives|forms|0[2-6].*)\]"),
    # Hosts that believe something else than the others have to be started for each.
    Rule("thorough", "tests/program/test_data_over_hosts.py", "too_large|more_ranks|versions|its_own_file"),
    Rule("long", "tests/program/test_data_over_hosts.py", "folders_of_their_own"),
    Rule("thorough", "tests/healing/test_healed_states.py"),
    Rule("thorough", "tests/healing/test_healed_trainings.py", r"\[2\]"),
    Rule("long", "tests/healing/test_healed_trainings.py", r"\[3\]"),
    # Pretend hosts, with MPI if it is there.
    Rule("thorough", "tests/hosts/", r"^(?!test_bulk.*-2-1\]|.*docker)"),
    Rule("long", "tests/hosts/", "docker"),
    Rule("thorough", "tests/sabotage/test_pieces.py", r"\[hosts"),
    Rule("thorough", "tests/sabotage/test_sabotage_of_hosts.py"),
    # Programs that take a minute each, mostly for compiling; `make test` runs smaller ones.
    Rule("thorough", "tests/demos/test_demos.py", "wrong_parallel_program|mlp_of_the_demo"),
    Rule("long", "tests/demos/test_demos.py", "cnn_on_uneven_shards|mlp_learns"),
    Rule(
        "thorough",
        "tests/demos/test_lasagne_mnist.py",
        "all_programs_compute_the_same|cnn_learns|same_ranks_go_on_from_a_checkpoint|wrong_parallel_program",
    ),
    Rule("long", "tests/demos/test_lasagne_mnist.py", "other_ranks_go_on_from_a_checkpoint"),
    Rule(
        "thorough",
        "tests/demos/test_resnet.py",
        "losses_of_a_wrong_program|of_all_ranks_the",
    ),
    Rule("long", "tests/demos/test_resnet.py", "other_ranks_go_on|table_adds_up|without_batch_norm_the"),
    Rule("thorough", "tests/demos/test_demos.py", r"short_demo\[(0[23456]|.*-1\])"),
    Rule("thorough", "tests/engines/test_import_fixes.py", "real_theano_computes"),
    # A program of each family; and of each rule, and each kind of output, one kind of ranks.
    Rule("thorough", "tests/exact_programs/", r"on_processes|test_program\[(?!mlp\]|highway|char_cnn|autoencoder)"),
    Rule("thorough", "tests/exact_programs/", r"boltzmann|\[variational|\[gru|statistics_tell"),
    Rule("thorough", "tests/functions/test_exact.py", r"threads-1|of_lasagne\[fork.*(mentum|ada.*a|rmsp)"),
    Rule("thorough", "tests/functions/test_default_ops.py", r"\bthreads-1"),
    # Theano's own tests: linked by Python, because nobody has compiled their functions; and where it must be by C.
    Rule("thorough", "tests/theano_suite/", r"\[(py|cvm-test_profiling)|handed_back"),
    Rule("long", "tests/theano_suite/", r"\[cvm-(?!test_profiling)"),
    Rule("thorough", "tests/functions/test_states.py", r"threads-[12]\b|2 uneven hosts"),
    # Hundreds of graphs, each for two kinds of functions: one kind, and the simple rules, are enough for `make test`.
    Rule("thorough", "tests/sharding/", r"\[exact-"),
    Rule("thorough", "tests/sharding/test_corpus.py"),
    Rule("thorough", "tests/sharding/test_nested.py"),
    Rule("thorough", "tests/sharding/test_random.py"),
    Rule("thorough", "tests/sharding/test_random_graphs.py"),
    Rule("thorough", "tests/extensions/test_batch_norm.py", "in C"),
    # Of rules on the engines, all with threads, and float32 and processes with some.
    Rule(
        "thorough",
        "tests/extensions/rules/test_rules_on_engines.py",
        r"fork-2-(?!EASGD|.*delay': 1)|3-(?!DiLoCo).*float32",
    ),
    Rule("thorough", "tests/extensions/rules/test_moments.py", r"ctrl_c_.*\[(?!EASGD|DiLoCo later)"),
    # Thousands of seeds; of every rule, some numbers of ranks, and some steps at which it stops.
    Rule(
        "thorough",
        "tests/extensions/rules/test_closed_forms.py",
        r"pairs_shrink|as_expected\[2000|equal_values.*-[127]\]",
    ),
    Rule("thorough", "tests/extensions/rules/test_resuming.py", r"to_the_bit.*-(0|5|9)\]|another_number.*-[14]\]"),
    # Of the rules on digits, one; with eight ranks, at length.
    Rule("thorough", "tests/extensions/rules/test_digits.py", r"_learns_.*-2\]|never_exchange"),
    Rule("long", "tests/extensions/rules/test_digits.py", r"_learns_.*(-4|\[(?!LocalSGD).*-8)\]"),
    # Of every model, two ranks.
    Rule("thorough", "tests/extensions/test_pymc_values.py", r"of_the_plain_model\[.*-[13]\]|compiled_by_numba"),
    Rule("thorough", "tests/extensions/test_pymc_sessions.py", "spawn"),
    Rule("thorough", "tests/extensions/test_pymc_samplers.py", "fit_in_batches|example_of_the_page"),
    Rule("thorough", "tests/extensions/test_pymc_unavailable.py", "imported_before"),
    # nutpie compiles; of every trouble, one chain.
    Rule(
        "thorough", "tests/extensions/test_pymc_nutpie.py", r"-2-|-at once|\[thread\]|plain_model|another_thread\[[ec]"
    ),
    # How precise every kind of model is: a few of them, and those in which something was wrong.
    Rule(
        "thorough",
        "tests/extensions/test_pymc_precision.py",
        r"\[(?!(logistic|linear|covariances|mixture|bounded_parameters|weights_of_a_simplex)\])",
    ),
    Rule(
        "thorough", "tests/extensions/test_train.py", r"averaged_in_groups\[.*adam|their_own_and_a_rule\[(slices|run)-3"
    ),
    # What becomes of modules that ranks load beforehand, in programs that compile: one, and one fault.
    Rule("thorough", "tests/replication/test_prefetched_modules.py", r"\[(?!in time)"),
    Rule("thorough", "tests/engines/test_compiled_modules.py", r"cannot_be_loaded|before_it_is_needed"),
    # Pages of many programs, each of which is compiled; and programs of a minute on a machine that has compiled nothing.
    Rule(
        "thorough",
        "tests/project/test_docs.py",
        r"examples_of_page\[(porting|exact|training|batches|large|communicating|asynchronous|first|loading|trouble)",
    ),
    Rule("thorough", "tests/cli/test_doctor.py", "test_command_line"),
    Rule("thorough", "tests/demos/test_demos.py", r"every_rule_trains\[wrong"),
    Rule("thorough", "tests/functions/test_compare.py", "the_command_line"),
    Rule("thorough", "tests/functions/test_function_variants.py", "peak_memory"),
    Rule("thorough", "tests/sabotage/test_notebook.py", "restarted"),
    # Of functions that are compiled to C, one of a kind.
    Rule(
        "thorough",
        "tests/engines/test_collectives_theano.py",
        "scans_of_every_kind|through_scan|and_profiles|the_same_numbers_again",
    ),
    Rule("thorough", "tests/engines/test_theano.py", "training_step_in_c"),
    Rule("thorough", "tests/replication/test_random_streams.py", r"dropout_of_lasagne|streams_of_theano\[mrg"),
    Rule("thorough", "tests/extensions/test_batch_norm.py", r"optimized|\[convolutional"),
    Rule(
        "thorough",
        "tests/extensions/rules/test_asynchronous.py",
        r"run_again\[(even|loaded-(threads-[123]|fork-2))|bounded\[[13]|an_error\w*\[threads|ctrl_c\[[AE]|step\[[AE]",
    ),
    Rule("thorough", "tests/extensions/rules/test_asynchronous_engines.py", r"\[(ASGD|Gossip)"),
    Rule("thorough", "tests/extensions/test_steps_of_training.py", r"every_rule\[(?!adam-|momentum-in_one)"),
    Rule("thorough", "tests/extensions/test_steps_of_training.py", r"(clipping|rules_of_ones_own)\[.*in_parts"),
    Rule("thorough", "tests/extensions/rules/test_rules_on_engines.py", r"few_functions_.*\[(?!EASGD|DASO)"),
    Rule("thorough", "tests/extensions/rules/test_rules_on_engines.py", r"simulation\[threads.*-(SlowMo|ASGD|Swap)-"),
    Rule("thorough", "tests/functions/test_sharded.py", r"\[threads-1"),
    Rule(
        "thorough", "tests/functions/test_collectives_inside.py", r"-C\]|linear_in_the_gradients|updates_that_are_not"
    ),
    Rule("thorough", "tests/functions/test_exact.py", r"averages_of_steps|of_lasagne\[threads-3-ada(delta|grad)"),
    Rule("thorough", "tests/functions/test_sharded.py", r"loop_over_time|the_middle_axis|along_the_last_axis"),
    Rule("thorough", "tests/ops/test_shard.py", r"beside_|test_steps|test_gradients|random_numbers"),
    Rule("thorough", "tests/project/test_docs.py", "program_of_readme_arrives"),
    Rule(
        "thorough",
        "tests/project/test_benchmarks.py",
        r"asynchronous_runs|test_training|test_runs\[(exact|rules|start|steps)",
    ),
    Rule("thorough", "tests/demos/test_second_order.py", "checks_tell_right_from_wrong"),
    Rule("long", "tests/demos/test_second_order.py", "the_whole_program"),
    # Of the worlds of threads, two ranks, and three whose root is in the middle or the last, are enough for `make test`;
    # of processes, two ranks, and in collectives three whose root is in the middle.
    Rule("thorough", "tests/", r"(?<!fork-)\b(1-root0|2-root1|3-root0)\b|fork-(1-root0|3-root2)\b"),
    Rule("thorough", "tests/functions/test_steps_on_processes.py", r"memory_does_not_grow\[theano"),
    Rule("long", "tests/functions/test_steps_on_processes.py", r"memory_does_not_grow\[numpy"),
    # Of every rule and every failure, one kind of ranks is enough.
    Rule("thorough", "tests/functions/test_collectives_inside.py", r"threads-1|of_lasagne\[fork.*(mentum|ada.*a|rmsp)"),
    Rule(
        "thorough", "tests/functions/test_steps_with_collectives.py", r"threads-1|the_steps_before\[0-|before.*threads"
    ),
    # That the random programs find what is wrong; `make test` runs them as they are, and plants each bug.
    Rule("long", "tests/programs/test_programs.py", r"planted_bug_is_found\["),
    Rule("long", "tests/programs/test_graphs.py", "planted_bug"),
    Rule("thorough", "tests/programs/test_graphs.py", "text_of_a_graph|much_is_drawn"),
    Rule("thorough", "tests/functions/test_pytensor_programs.py", "linkers"),
    Rule("long", "tests/programs/test_programs.py", "planted_bug_is_found_in_graphs"),
    # Interrupts and deaths at every step; `make test` has some of each kind.
    Rule("thorough", "tests/sabotage/test_ctrl_c.py", r"-2-group\]|-master\]|killed\[.*-9\]"),
    Rule("thorough", "tests/sabotage/test_kills.py", "kill_at_every_step"),
    Rule(
        "thorough",
        "tests/sabotage/test_kills_in_rules.py",
        r"\[(EASGD|DASO)-30|\[(?!EASGD|DiLoCo later|DASO).*(?<!-30)\]",
    ),
    Rule("long", "tests/sabotage/test_kills_in_rules.py", r"\[(?!EASGD|DASO).*-30\]"),
    Rule("thorough", "tests/sabotage/test_pieces.py"),
    Rule("long", "tests/sabotage/test_sessions.py", "300_sessions"),
    # What takes longest of all, so that `make test` stays within six minutes; something like each of them stays there.
    Rule("thorough", "tests/demos/test_demos.py", "every_rule_trains"),
    Rule("thorough", "tests/demos/test_lasagne_mnist.py", r"test_help\[(?!run_all)|unknown_model"),
    Rule("thorough", "tests/demos/test_resnet.py", r"bad_settings_are_refused\[(?!--rule adam)"),
    Rule("thorough", "tests/engines/test_collectives_theano.py", "scan_in_a_branch|r_operator"),
    Rule("thorough", "tests/engines/test_compiled_modules.py", "cache_does_not_give"),
    Rule("thorough", "tests/engines/test_registry.py", r"in_the_place_of_theanos\[compile"),
    Rule("thorough", "tests/engines/test_theano.py", "three_thousand|scan_with_shared_variables_and_random"),
    Rule("thorough", "tests/engines/test_theano_variants.py", "all_in_scan|ranks_do_not_meet"),
    Rule("thorough", "tests/exact_programs/test_drawing_programs.py", r"distribution\[dropout"),
    Rule("thorough", "tests/extensions/rules/test_asynchronous_engines.py", "the_log_gives"),
    Rule("thorough", "tests/extensions/rules/test_digits.py", r"_learns_.*\[LocalSGD-8"),
    Rule("thorough", "tests/extensions/test_checkpoint_engines.py", "random_streams"),
    Rule("thorough", "tests/extensions/test_train.py", "daso_of_gradients"),
    Rule("thorough", "tests/functions/test_collectives_inside.py", "updates_that_also_depend"),
    Rule("thorough", "tests/functions/test_sharded.py", "test_steps|exact_training_time_first"),
    Rule("thorough", "tests/functions/test_steps_with_collectives.py", "an_epoch_of_adam|memory_does_not_grow"),
    Rule("thorough", "tests/host/test_heap.py", "left_alone|later_session"),
    Rule("thorough", "tests/kernels/test_reduce_kernel.py", r"same_bits_as_numpy\[.*-[15]-"),
    Rule("thorough", "tests/ops/test_rule.py", "training_through"),
    Rule("thorough", "tests/ops/test_shard.py", r"tutorials_form\[.*-mean"),
    Rule("thorough", "tests/programs/test_programs.py", "bug_alone"),
    Rule("thorough", "tests/programs_2017/", r"inputs_built_beforehand|on_the_host\[3|on_the_ranks|a_residual_network"),
    Rule(
        "thorough",
        "tests/project/test_benchmarks.py",
        r"test_runs\[(loading|calls)|nothing_is_cached|another_environment",
    ),
    Rule("thorough", "tests/project/test_docs.py", "pages_build|texts_of_troubleshooting"),
    Rule("thorough", "tests/project/test_install.py", r"changed_requirements.*(\[theano-|setup.py|_kernels.c)"),
    Rule("thorough", "tests/project/test_package.py", "wheel_holds"),
    Rule("thorough", "tests/reductions/test_mean.py", r"test_mean\[[137]-"),
    Rule("thorough", "tests/reductions/test_single_numbers.py", r"bits_of_one_by_one\[(?!sum-|avg-float32)"),
    Rule("thorough", "tests/replication/test_distribute.py", "3000_chained|in_main_after_fork|few_descriptors"),
    Rule("thorough", "tests/replication/test_prefetched_modules.py", "whatever_becomes_of_it"),
    Rule("thorough", "tests/replication/test_random_streams.py", r"were_built\[(1-|1099)"),
    Rule("thorough", "tests/sabotage/test_kills.py", "open_files|other_deaths|ranks_that_stay"),
    Rule("thorough", "tests/sabotage/test_limits.py", r"small_dev_shm\[(1-True|16|64)"),
    Rule("thorough", "tests/sabotage/test_notebook.py", "jupyter_kernel"),
    Rule("thorough", "tests/sabotage/test_sessions.py", r"little_address_space\[(20|100|2000)\]"),
    Rule("thorough", "tests/functions/", r"\bfork-3-root1\b"),
    Rule("thorough", "tests/replication/", r"\bfork-3-root1\b"),
    Rule("thorough", "tests/collectives/", r"(op_and_dtype|dtype_and_length)\[threads-3"),
    Rule("thorough", "tests/extensions/rules/test_moments.py", "ctrl_c_between"),
    Rule("thorough", "tests/extensions/test_train.py", r"test_local_sgd\[3-"),
    Rule("thorough", "tests/extensions/test_updates.py", r"as_lasagne\[.*-float64|serial_program_does\[3"),
    Rule("thorough", "tests/functions/test_common_draws.py", r"serial_program_draws\[threads-1"),
    Rule("thorough", "tests/functions/test_steps_with_collectives.py", "ranks_do_not_meet"),
    Rule("thorough", "tests/kernels/test_reduce_kernel.py", r"same_bits_as_numpy\[.*-3-"),
    Rule("thorough", "tests/project/test_install.py", "environments_of_mpi|other_python|group_is_installed"),
    Rule("thorough", "tests/reductions/test_mean.py", r"complex_numbers.*\[[137]-|without_a_value\[[137]-"),
    Rule("thorough", "tests/reductions/test_reductions.py", r"slices_at_once\[(prod|max|min)"),
    Rule("thorough", "tests/replication/test_random_streams.py", r"seeds_of_theano\[(None|5)"),
    Rule("thorough", "tests/sabotage/test_exits.py", r"test_ends\[(daemon|stopped)"),
    # On processes and with Theano, one of each kind: everything is called there with threads and NumPy.
    Rule(
        "thorough",
        "tests/functions/test_batch_s.py",
        r"fork-2-root0-theano(?!-list\])(?!.*test_what_is_refused)|threads.*theano",
    ),
    Rule(
        "thorough",
        "tests/extensions/test_steps_of_training.py",
        r"^test_(?!a_step_is_one_command|every_rule\[momentum|a_step_that_fails|many_steps)",
    ),
    Rule(
        "thorough",
        "tests/functions/test_states.py",
        r"^test_(?!every_form_of_a_call|every_rank_keeps|what_the_program_puts|steps_go_on|rows_of).*\[fork",
    ),
    Rule("thorough", "tests/functions/test_parted.py", r"\[fork-2"),
    Rule("thorough", "tests/programs/test_programs.py", "^test_threads"),
    Rule("thorough", "tests/programs_2017/", r"the_program_of_the_paper|with_the_data_on_the_host\[2"),
    Rule("thorough", "tests/extensions/test_updates.py", r"serial_program_does\["),
    Rule("thorough", "tests/engines/test_conformance.py", r"computes_the_same_there\[theano"),
    Rule("thorough", "tests/engines/test_import_fixes.py", "real_lasagne"),
    Rule("thorough", "tests/sabotage/test_sessions.py", "that_end_badly"),
    Rule("thorough", "tests/sabotage/test_kills_in_rules.py", r"\[(?!EASGD-3\])"),
    Rule("thorough", "tests/sabotage/test_ctrl_c.py", r"nobody_catches\[collective|alarms_that"),
    Rule(
        "thorough",
        "tests/engines/test_collectives_theano.py",
        r"scan_is_in_the_chain\[(?!cvm)|order_in_every_mode\[(?!FAST_C)",
    ),
    Rule("thorough", "tests/demos/test_demos.py", r"short_demo\["),
    Rule("thorough", "tests/programs/test_programs.py", r"processes_of_graphs"),
    Rule("thorough", "tests/project/test_docs.py", "complete_program_of_readme"),
    Rule("thorough", "tests/sabotage/test_ctrl_c.py", r"^test_ctrl_c\[(?!call|collective)"),
    Rule("thorough", "tests/extensions/test_batch_norm.py", r"serial_programs\[(?!.*adam)"),
    Rule("thorough", "tests/extensions/test_updates.py", r"as_paper\[.*float32|any_dtype"),
    Rule("thorough", "tests/functions/test_function_variants.py", r"all_graphs_and_all_ranks\[fork"),
    Rule("thorough", "tests/replication/test_random_streams.py", "explicit_updates_and_scan|dropped_and_is_sent"),
    # Of two hosts with OpenCL devices there is a test of the communicator without them; of large arrays by MPI, two and
    # three hosts are enough.
    Rule("long", "tests/gpu/test_gpu.py", r"\[hosts"),
    Rule("thorough", "tests/gpu/test_gpu.py", r"\[profiles"),
    Rule("long", "tests/hosts/test_bulk.py", r"-2-1\]"),
    # Tests that measure time: a busy machine may fail them.
    Rule("long", "tests/functions/test_changes.py", "less_than_a_microsecond"),
    Rule("long", "tests/launchers/test_courier.py", "become_rare|hardly_tested"),
    Rule("long", "tests/launchers/test_keeper.py", "is_idle"),
    Rule("long", "tests/memory/test_pool.py", "takes_microseconds"),
    Rule("long", "tests/profiling/test_profiled_sessions.py", "add_up"),
    Rule("long", "tests/project/test_benchmarks.py", r"test_at_once$|processes_have_used"),
    # What looks at the clock or at the processor, or takes all of it.
    Rule("alone", "tests/launchers/test_keeper.py", "is_idle"),
    Rule("alone", "tests/profiling/test_profiled_sessions.py", "add_up"),
    Rule(
        "alone",
        "tests/project/test_benchmarks.py",
        "at_once|test_training|test_runs|processes_have_used",
    ),
)


def matches(rule, path, name):
    """Return whether a rule is about a test."""
    return path.startswith(rule.path) and re.search(rule.names, name) is not None


def markers_of(path, name, is_compiled):
    """Return the markers of a test; without that of a tier it begins to run with `make test`.

    Parameters
    ----------
    path : str
        Its file, from the root of the repository.
    name : str
        The rest of its id: the function, and the parameters in brackets.
    is_compiled : bool
        Whether it has the marker `theano` or `pytensor`.
    """
    markers = {rule.marker for rule in RULES if matches(rule, path, name)}
    if not markers & {"thorough", "long"} and not is_compiled and not any(matches(rule, path, name) for rule in SLOW):
        markers.add("quick")
    return sorted(markers)


class Turns:
    """Turns of test processes that run at the same time: any number of tests together, or one that is `alone`.

    There are two locks, because with one a test that wants to be alone might wait for ever: a test that waits for the room
    holds the door, so that no other comes in.

    Parameters
    ----------
    folder : path
        The same for all processes, and empty at first.
    """

    def __init__(self, folder):
        self._door, self._room = (os.open(str(folder / name), os.O_RDWR | os.O_CREAT) for name in ("door", "room"))

    def close(self):
        """Close the files."""
        os.close(self._door)
        os.close(self._room)

    def begin(self, alone):
        """Wait for this test's turn."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(self._door, fcntl.LOCK_UN)

    def end(self):
        """Let the others have theirs."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_UN)
