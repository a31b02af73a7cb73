//! The call, as it is written on the command line.

use anyhow::{Context, ensure};
use tallygate::policy::Descriptor;

/// The descriptors of the call: `entries` are the first, if there are any, and each of `lists` is another.
pub(in crate::cmd) fn descriptors(entries: &[String], lists: &[String]) -> anyhow::Result<Vec<Descriptor>> {
    ensure!(
        !entries.is_empty() || !lists.is_empty(),
        "the call has no entries: write them as its caller would, for example user=42 path=/v1/items"
    );
    let mut descriptors = Vec::new();
    if !entries.is_empty() {
        let entries = entries.iter().map(|entry| {
            let (key, value) = entry.split_once('=').with_context(|| invalid(entry))?;
            ensure!(!key.is_empty(), invalid(entry));
            Ok((key.to_owned(), value.to_owned()))
        });
        descriptors.push(entries.collect::<anyhow::Result<Descriptor>>()?);
    }
    for list in lists {
        descriptors.push(descriptor(list).context("--descriptor")?);
    }
    Ok(descriptors)
}

/// `key=value,key=value`, with `\` before a literal `,`, `=` or `\`, as in subjects.
fn descriptor(list: &str) -> anyhow::Result<Descriptor> {
    let mut descriptor = Descriptor::new();
    let (mut key, mut part) = (None, String::new());
    let mut chars = list.chars().peekable();
    loop {
        match chars.next() {
            Some('\\') if chars.peek().is_some_and(|c| matches!(c, ',' | '=' | '\\')) => part.extend(chars.next()),
            // Later ones are part of the value.
            Some('=') if key.is_none() => key = Some(std::mem::take(&mut part)),
            end @ (Some(',') | None) => {
                let key = key.take().filter(|key| !key.is_empty()).with_context(|| invalid(&part))?;
                descriptor.push(key, std::mem::take(&mut part));
                if end.is_none() {
                    return Ok(descriptor);
                }
            }
            Some(c) => part.push(c),
        }
    }
}

fn invalid(text: &str) -> String {
    format!("invalid entry `{text}`: write KEY=VALUE, for example user=42")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &str) -> Vec<(String, String)> {
        descriptor(list).unwrap().entries().to_vec()
    }

    #[test]
    fn a_list_is_read_as_subjects_are_written() {
        let all = [("user", "42"), ("path", "/a,b=c"), ("odd=key", r"\,")];
        let written = tallygate::policy::Subject::new(all);
        assert_eq!(entries(written.as_str()), all.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(entries(r"q=a=b\c"), [("q".to_owned(), r"a=b\c".to_owned())]);
        assert_eq!(entries("empty="), [("empty".to_owned(), String::new())]);
    }

    #[test]
    fn invalid_entries_are_refused() {
        for list in ["", "user", "=42", "user=42,", ",user=42", r"user\=42"] {
            assert!(descriptor(list).is_err(), "{list}");
        }
        for entry in ["", "user", "=42"] {
            assert!(descriptors(&[entry.to_owned()], &[]).is_err(), "{entry}");
        }
    }

    #[test]
    fn a_call_has_at_least_one_descriptor() {
        let one = |text: &str| vec![text.to_owned()];
        assert!(descriptors(&[], &[]).is_err());
        assert_eq!(descriptors(&[], &one("a=b")).unwrap(), [Descriptor::new().with("a", "b")]);
        let both = descriptors(&one("c=d,e"), &one("a=b")).unwrap();
        assert_eq!(both, [Descriptor::new().with("c", "d,e"), Descriptor::new().with("a", "b")]);
    }
}
