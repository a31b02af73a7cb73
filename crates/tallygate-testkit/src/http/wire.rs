//! Reading and writing HTTP messages.

use std::io::{self, BufRead, Error, ErrorKind, Write};

/// What a body without a length is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unmarked {
    /// In a request.
    Empty,
    /// In a response.
    UntilClosed,
}

pub(crate) fn header<'a>(headers: &'a [(impl AsRef<str>, impl AsRef<str>)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(own, _)| own.as_ref().eq_ignore_ascii_case(name)).map(|(_, value)| value.as_ref())
}

pub(crate) fn invalid(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not HTTP/1.1: {line:?}"))
}

/// Everything before the body.
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
}

/// `None` if the other side has closed the connection.
pub(crate) fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Head>> {
    if reader.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let first = read_line(reader)?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Ok(Some(Head { first, headers }));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid(&line))?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
}

pub(crate) fn read_body(
    reader: &mut impl BufRead,
    headers: &[(String, String)],
    unmarked: Unmarked,
) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if is_chunked(headers) {
        loop {
            let line = read_line(reader)?;
            let (size, _extension) = line.split_once(';').unwrap_or((&line, ""));
            let size = usize::from_str_radix(size.trim(), 16).map_err(|_| invalid(&line))?;
            if size == 0 {
                // Trailers are ignored.
                while !read_line(reader)?.is_empty() {}
                return Ok(body);
            }
            read_exactly(reader, size, &mut body)?;
            read_line(reader)?;
        }
    }
    if let Some(length) = header(headers, "content-length") {
        let length = length.parse().map_err(|_| invalid(length))?;
        read_exactly(reader, length, &mut body)?;
    } else if let Unmarked::UntilClosed = unmarked {
        reader.read_to_end(&mut body)?;
    }
    Ok(body)
}

/// Writes in one piece, so that no packet waits for another. Adds the length of the body, if any, to the headers.
pub(crate) fn write(
    writer: &mut impl Write,
    first: &str,
    headers: &[(String, String)],
    body: Option<&[u8]>,
) -> io::Result<()> {
    let mut text = format!("{first}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let chunked = is_chunked(headers);
    if let Some(body) = body
        && !chunked
        && header(headers, "content-length").is_none()
    {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    let body = body.unwrap_or_default();
    if chunked && !body.is_empty() {
        bytes.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n");
    } else {
        bytes.extend_from_slice(body);
    }
    if chunked {
        bytes.extend_from_slice(b"0\r\n\r\n");
    }
    writer.write_all(&bytes)
}

fn is_chunked(headers: &[(String, String)]) -> bool {
    header(headers, "transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
}

/// A line without its line end, which is required.
fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.strip_suffix('\n').ok_or(ErrorKind::UnexpectedEof)?;
    Ok(line.trim_end_matches('\r').to_owned())
}

fn read_exactly(reader: &mut impl BufRead, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
    let start = body.len();
    body.resize(start + length, 0);
    reader.read_exact(&mut body[start..])
}
