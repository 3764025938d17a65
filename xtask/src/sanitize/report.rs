//! Reads what compute-sanitizer prints for a test binary.

use anyhow::{Context, Result, ensure};
use std::fmt;

/// What one tool has found in one suite.
pub(super) struct Report {
    /// Tests that were run.
    tests: u32,
    failed_tests: u32,
    /// Errors, hazards and warnings of the tool.
    findings: u32,
    /// Whether the process ended as it does if all tests pass.
    has_succeeded: bool,
    /// What was printed.
    output: String,
}

impl Report {
    /// Reads what `tool` and the test binary have printed. There is no report if the binary did not
    /// finish, or if its tests ran without the tool.
    pub(super) fn parse(tool: &str, output: &str, has_succeeded: bool) -> Result<Self> {
        let summary = if tool == "racecheck" { "RACECHECK SUMMARY: " } else { "ERROR SUMMARY: " };
        let findings = numbers_behind(output, summary);
        ensure!(!findings.is_empty(), "expected a line `========= {summary}…`, got:\n{output}");
        let result = output
            .lines()
            .find_map(|line| line.strip_prefix("test result: "))
            .with_context(|| format!("expected the line `test result: …`, got:\n{output}"))?;
        let count = |what| {
            result.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what)?.parse().ok())
        };
        let (passed, failed_tests): (Option<u32>, Option<u32>) =
            (count(" passed"), count(" failed"));
        let (passed, failed_tests) = passed
            .zip(failed_tests)
            .with_context(|| format!("expected numbers of tests, got `{result}`"))?;
        Ok(Report {
            tests: passed + failed_tests,
            failed_tests,
            findings: findings.iter().sum(),
            has_succeeded,
            output: output.to_owned(),
        })
    }

    /// What was printed, if something is wrong: a finding, a failed test, a process that did not
    /// end normally, or no test at all.
    pub(super) fn failure(&self) -> Option<&str> {
        let is_good =
            self.findings == 0 && self.failed_tests == 0 && self.has_succeeded && self.tests > 0;
        (!is_good).then_some(&self.output)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tests, {} reports", self.tests, self.findings)?;
        if self.failed_tests > 0 {
            write!(f, ", {} failed", self.failed_tests)?;
        }
        Ok(())
    }
}

/// The numbers after `prefix` in the tool's own lines. If there are more findings than the tool
/// prints, a second line counts those that it has not printed; the first line includes them.
fn numbers_behind(output: &str, prefix: &str) -> Vec<u32> {
    output
        .lines()
        .filter(|line| !line.contains("not printed"))
        .filter_map(|line| line.strip_prefix("========= ")?.strip_prefix(prefix))
        .filter_map(|rest| rest.split(' ').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "
running 2 tests
test a_loss ... ok
test a_gradient ... ok

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 4.21s
";

    fn output(tests: &str, summary: &str) -> String {
        format!("========= COMPUTE-SANITIZER\n{tests}\n{summary}\n")
    }

    fn parse(tool: &str, tests: &str, summary: &str) -> Report {
        Report::parse(tool, &output(tests, summary), true).unwrap()
    }

    #[test]
    fn nothing_is_found() {
        let clean = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";
        for (tool, summary) in [
            ("memcheck", "========= ERROR SUMMARY: 0 errors"),
            ("racecheck", clean),
            ("synccheck", "========= ERROR SUMMARY: 0 errors"),
            ("initcheck", "========= ERROR SUMMARY: 0 errors"),
        ] {
            let report = parse(tool, PASSED, summary);
            assert_eq!(report.to_string(), "2 tests, 0 reports", "{tool}");
            assert_eq!(report.failure(), None, "{tool}");
        }
    }

    #[test]
    fn an_error_is_found() {
        let summary = "\
========= Invalid __global__ read of size 4 bytes
=========     at mse_forward_f32+0x1d0
=========     by thread (31,0,0) in block (2,0,0)
=========     Address 0x7f2c5fa00400 is out of bounds
=========
========= ERROR SUMMARY: 1 error";
        let report = parse("memcheck", PASSED, summary);
        assert_eq!(report.to_string(), "2 tests, 1 reports");
        assert!(report.failure().unwrap().contains("Invalid __global__ read"));
    }

    #[test]
    fn a_hazard_is_found_though_it_is_a_warning() {
        let summary = "\
========= Warning: Race reported between Read access at mse_forward_f32+0x230
=========     and Write access at mse_forward_f32+0x1f0 [31 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)";
        let report = parse("racecheck", PASSED, summary);
        assert_eq!(report.to_string(), "2 tests, 1 reports");
        assert!(report.failure().is_some());
    }

    #[test]
    fn more_errors_than_are_printed_are_counted_once() {
        let summary = "\
========= ERROR SUMMARY: 132 errors
========= ERROR SUMMARY: 32 errors were not printed. Use --print-limit option to adjust the number";
        assert_eq!(parse("initcheck", PASSED, summary).to_string(), "2 tests, 132 reports");
    }

    #[test]
    fn a_test_has_failed() {
        let tests =
            "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let report = parse("memcheck", tests, "========= ERROR SUMMARY: 0 errors");
        assert_eq!(report.to_string(), "6 tests, 0 reports, 1 failed");
        assert!(report.failure().is_some());
    }

    #[test]
    fn no_test_is_a_failure() {
        let tests = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert!(parse("memcheck", tests, "========= ERROR SUMMARY: 0 errors").failure().is_some());
    }

    #[test]
    fn a_process_that_ends_otherwise_is_a_failure() {
        let summary = "\
========= Target application returned an error
========= ERROR SUMMARY: 0 errors";
        let output = output(PASSED, summary);
        assert!(Report::parse("memcheck", &output, false).unwrap().failure().is_some());
    }

    #[test]
    fn a_tool_that_has_seen_no_kernel_has_no_report() {
        let never =
            "========= Error: Target application terminated before first instrumented API call";
        let no_summary = Report::parse("memcheck", &output(PASSED, never), true).err().unwrap();
        assert!(no_summary.to_string().contains("ERROR SUMMARY"), "{no_summary}");
        // That of another tool does not count.
        let other = output(PASSED, "========= ERROR SUMMARY: 0 errors");
        assert!(Report::parse("racecheck", &other, true).is_err());
        let no_tests = output("Segmentation fault", "========= ERROR SUMMARY: 0 errors");
        let error = Report::parse("memcheck", &no_tests, false).err().unwrap();
        assert!(error.to_string().contains("test result"), "{error}");
    }
}
