//! Rows that do not count in the mean of many short rows, and class weights of short rows.

use crate::mutants::plant::{Mutant, Seen};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "no_retry",
        what: "the second of two launches ends at once, whatever the first has met",
        file: "cross_entropy/packed/mod.rs",
        lines: "if is_retry() && !workspace.is_retried() {",
        from: "!workspace.is_retried()",
        to: "true",
        test: "uncounted_rows::rows_in_the_registers_of_a_lane",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "ignored_not_noted_by_a_lane",
        what: "a lane notes rows whose target is no class, but none of a class that is ignored",
        file: "cross_entropy/packed/lane_per_row.rs",
        lines: "all_count = all_count && is_class && counts;",
        from: "is_class && counts",
        to: "is_class",
        test: "uncounted_rows::rows_of_a_class_that_is_ignored",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "no_class_not_noted_by_a_lane",
        what: "a lane notes rows that are ignored, but none whose target is no class",
        file: "cross_entropy/packed/lane_per_row.rs",
        lines: "all_count = all_count && is_class && counts;",
        from: "is_class && counts",
        to: "counts",
        test: "uncounted_rows::rows_in_the_registers_of_a_lane",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "ignored_not_noted",
        what: "smoothed rows with z-loss are not noted where their class is in range and ignored",
        file: "cross_entropy/packed/lane_per_row/any.rs",
        lines: "if Self::has_attempts::<COMPUTES>() && !counts_in_mean(args, class) {",
        from: "!counts_in_mean(args, class)",
        to: "class.cast_unsigned() >= args.cols.into()",
        test: "uncounted_rows::rows_of_a_class_that_is_ignored",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "no_class_not_noted",
        what: "smoothed rows with z-loss are not noted where they have no class",
        file: "cross_entropy/packed/lane_per_row/any.rs",
        lines: "if Self::has_attempts::<COMPUTES>() && !counts_in_mean(args, class) {",
        from: "!counts_in_mean(args, class)",
        to: "class == args.ignore_index",
        test: "uncounted_rows::rows_of_a_class_that_is_ignored",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "cautious_call_counts_nothing",
        what: "a cautious call takes all rows for rows that count",
        file: "cross_entropy/packed/mod.rs",
        lines: "&& !workspace.is_cautious()
        {
            if block_idx_x() == 0 && thread_idx_x() == 0 {",
        from: "!workspace.is_cautious()",
        to: "true",
        test: "uncounted_rows::rows_in_the_registers_of_a_lane",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "retry_of_other_shares",
        what: "the blocks of a retry share the rows among themselves",
        file: "cross_entropy/packed/mod.rs",
        lines: "let Some(of_turn) = rank.of_turn(turn, args.retried_blocks) else { return };",
        from: "args.retried_blocks",
        to: "(grid_dim_x() - normaliser_blocks)",
        test: "uncounted_rows::bits_of_cautious_calls",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "note_stays",
        what: "the note that a row does not count is still there in the next call",
        file: "reduce/workspace.rs",
        lines: "_ if !all_count => attempt::NOTED + attempt::CAUTIOUS_CALLS,",
        from: "attempt::NOTED + attempt::CAUTIOUS_CALLS",
        to: "attempt::NOTED",
        test: "uncounted_rows::rows_in_the_registers_of_a_lane",
        seen: Seen::Nowhere(
            "the first launch of the next call stops, and the second computes all: results are \
             right, and only take longer. A test of the library looks at the workspace",
        ),
    },
    Mutant {
        name: "first_tile_alone",
        what: "an optimistic launch stops behind the first tile of each warp",
        file: "cross_entropy/packed/stage.rs",
        lines: "if any(u64::from(uncounted) == attempt::NOTED) {",
        from: "any(u64::from(uncounted) == attempt::NOTED)",
        to: "true",
        test: "uncounted_rows::rows_in_the_registers_of_a_lane",
        seen: Seen::OnEmulator,
    },
    Mutant {
        name: "lanes_stop_apart",
        what: "a lane stops where another, which has read the note before, goes on",
        file: "cross_entropy/packed/stage.rs",
        lines: "if any(u64::from(uncounted) == attempt::NOTED) {",
        from: "any(u64::from(uncounted) == attempt::NOTED)",
        to: "u64::from(uncounted) == attempt::NOTED",
        test: "uncounted_rows::rows_in_the_registers_of_a_lane",
        seen: Seen::Nowhere(
            "on the emulator, no other warp stores a note between the loads of a warp's lanes. A \
             GPU may part the lanes, by chance",
        ),
    },
];
