//! The README's console examples, run as they are written.

use std::process::Command;

use tallygate_testkit::Server;

/// The durations in an answer depend on the moment; what is allowed and what is left does not.
fn without_times(line: &str) -> &str {
    line.split(", ").next().unwrap_or(line)
}

#[test]
fn the_examples_answer_as_the_readme_says() {
    let readme = include_str!("../../../README.md");
    let server = Server::redis().start();
    let mut run = 0;
    for block in readme.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let mut store = None;
        for example in block.split("$ ").skip(1) {
            let (command, expected) = example.split_once('\n').unwrap();
            if command.starts_with("export TALLYGATE_STORE=") {
                store = Some(server.url());
            }
            let Some(args) = command.strip_prefix("tallygate ") else { continue };
            // A shell takes the command apart, as the reader's will.
            let shell = format!("{} {args}", env!("CARGO_BIN_EXE_tallygate"));
            let mut shell_command = Command::new("sh");
            shell_command.args(["-c", &shell]).env_remove("TALLYGATE_STORE").env("NO_COLOR", "1");
            shell_command.envs(store.iter().map(|url| ("TALLYGATE_STORE", url)));
            let output = shell_command.output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let said: Vec<&str> = said.lines().map(without_times).collect();
            let expected: Vec<&str> = expected.lines().map(without_times).collect();
            assert_eq!(said, expected, "{command}\n{}", String::from_utf8_lossy(&output.stderr));
            run += 1;
        }
    }
    assert!(run >= 4, "only {run} examples were found");
}
