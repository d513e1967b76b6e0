//! Makes programs of the README's two, so that they are run and not compiled alone: with a store, an address and a
//! refund of the test's.

use std::{env, error::Error, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let readme = "../../README.md";
    println!("cargo::rerun-if-changed={readme}");
    let readme = fs::read_to_string(readme)?;
    let out = env::var("OUT_DIR")?;
    for (name, framework) in [("axum", "lockgate_axum"), ("actix_web", "lockgate_actix_web")] {
        let program = readme
            .split("```rust,no_run\n")
            .skip(1)
            .filter_map(|block| block.split("```").next())
            .find(|block| block.contains(&format!("use {framework}::")))
            .ok_or(format!("no program with {framework} in the README"))?;
        let program = of_the_test(program)?;
        fs::write(Path::new(&out).join(format!("readme_{name}.rs")), program)?;
    }
    Ok(())
}

/// What the test says in the place of what readers do.
const OURS: [(&str, &str); 3] = [
    (
        r#"Store::connect("redis://127.0.0.1/")"#,
        // With more time than readers need: the machine of a test is loaded.
        r#"Store::builder(&std::env::var("LOCKGATE_STORE")?).deadline(lockgate_tests::PATIENCE).connect()"#,
    ),
    (r#""127.0.0.1:3000""#, r#"std::env::var("LISTEN")?"#),
    ("\"refunded\"\n", "lockgate_tests::until_file().await\n"),
];

fn of_the_test(program: &str) -> Result<String, String> {
    OURS.iter().try_fold(program.to_owned(), |program, (theirs, ours)| {
        match program.matches(theirs).count() {
            1 => Ok(program.replace(theirs, ours)),
            found => Err(format!("{theirs} stands {found} times in the README's program")),
        }
    })
}
