//! `cargo xtask <verb>`: everything a developer or CI runs on this repository.

mod bench;
mod ci;
mod drill;
mod fuzz;
mod hygiene;
mod lines;
mod minimum_rust;
mod model;
mod mutation;
mod package;
mod proto;
mod run;
mod setup;
mod simulate;
mod test;
mod torture;
mod tree;
mod twins;

use std::env;
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask <verb>

  setup                                 find or install the servers, proxies and tools that the tests need
  test [cargo test arguments]           setup, all tests, then the interleaving tests
  ci                                    fmt, clippy, doc, hygiene, package, proto, minimum-rust, test: what CI runs
  hygiene                               dependencies, file sizes, phrases, links and anchors, code blocks of guides
  minimum-rust                          build the libraries with the Rust version that their manifests name
  package                               package every crate, and check what is in it
  lines [--at REVISION]                 count lines by crate: product, generated, tests
  proto [--check]                       generate the code of Envoy's protocol, or check that it is up to date
  model --decisions N [--seed S] ...    compare the algorithms with an exact model; --algorithm A, --threads N
  twins --steps N [--algorithm A]       compare memory and Lua over N random steps
  simulate                              the Redis client against simulated servers: every reply, cut and departure
  torture --faults N [--seed S] ...     random faults on real servers; --mutants breaks the product, and must be found
  drill [NAME] [--seconds N]            named faults under full load: hang, flood, sentinel, cluster, shard, policies
  mutation lua|rust [file] ...          change the code in one place at a time: a test must notice each mutant
  fuzz [target ...] [--seconds N] ...   fuzz every parser, or the named ones; --replay FILE, --merge
  bench embedded|middleware|redis|hot-key ...
                                        measure, side by side with peers";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let Some((verb, rest)) = args.split_first() else {
        eprintln!("{HELP}");
        return ExitCode::from(2);
    };
    let result = match verb.as_str() {
        "setup" => setup::run().and_then(|_| setup::cargo_deny()).map(|_| ()),
        "test" => test::run(rest),
        "ci" => ci::run(),
        "hygiene" => hygiene::run(),
        "lines" => lines::run(rest),
        "mutation" => mutation::run(rest),
        "minimum-rust" => minimum_rust::run(),
        "model" => model::run(rest),
        "package" => package::run(),
        "proto" => proto::run(rest),
        "simulate" => simulate::run(rest),
        "drill" => drill::run(rest),
        "torture" => torture::run(rest),
        "twins" => twins::run(rest),
        "fuzz" => fuzz::run(rest),
        "bench" => bench::run(rest),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        unknown => {
            eprintln!("unknown verb `{unknown}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {verb}: {error:#}");
            run::exit_code(&error)
        }
    }
}
