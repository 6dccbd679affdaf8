//! `strftime` with the C locale for a moment that the caller gives as "YYYY-MM-DDTHH:MM:SS".

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

pub struct Moment {
    year: u32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

fn leap(year: u32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_length(year: u32, month: u32) -> u32 {
    [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1]
}

impl Moment {
    pub fn parse(text: &str) -> Option<Moment> {
        let shape = text.len() == 19 && text.is_ascii();
        let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if !shape || marks.iter().any(|(at, mark)| text.as_bytes()[*at] != *mark) {
            return None;
        }
        let number = |from: usize, to: usize| {
            let digits = &text[from..to];
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
        };
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let sound = year >= 1
            && (1..=12).contains(&month)
            && (1..=month_length(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 61;
        sound.then_some(Moment { year, month, day, hour, minute, second })
    }

    fn day_of_year(&self) -> u32 {
        (1..self.month).map(|m| month_length(self.year, m)).sum::<u32>() + self.day
    }

    fn weekday(&self) -> u32 {
        let past = self.year - 1;
        (past + past / 4 - past / 100 + past / 400 + self.day_of_year()) % 7
    }

    /// Err names the directive that is not known.
    pub fn format(&self, pattern: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let bare = directive == Some('-'); // "%-d": without padding
            if bare {
                directive = chars.next();
            }
            let Some(directive) = directive else { return Err("%".into()) };
            self.directive(directive, bare, &mut out)?;
        }
        Ok(out)
    }

    fn directive(&self, directive: char, bare: bool, out: &mut String) -> Result<(), String> {
        let hour12 = (self.hour + 11) % 12 + 1;
        let (value, width) = match directive {
            'Y' => (self.year, if bare { 0 } else { 4 }),
            'y' => (self.year % 100, 2),
            'm' => (self.month, 2),
            'd' => (self.day, 2),
            'H' => (self.hour, 2),
            'I' => (hour12, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'j' => (self.day_of_year(), 3),
            'u' => ((self.weekday() + 6) % 7 + 1, 1),
            'w' => (self.weekday(), 1),
            _ if bare => return Err(format!("%-{directive}")),
            _ => return self.text_directive(directive, out),
        };
        let width = if bare { 0 } else { width };
        out.push_str(&format!("{value:0width$}"));
        Ok(())
    }

    fn text_directive(&self, directive: char, out: &mut String) -> Result<(), String> {
        let (month, day) = (MONTHS[self.month as usize - 1], DAYS[self.weekday() as usize]);
        match directive {
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'A' => out.push_str(day),
            'a' => out.push_str(&day[..3]),
            'e' => out.push_str(&format!("{:2}", self.day)),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            'F' => out.push_str(&self.format("%Y-%m-%d")?),
            'T' => out.push_str(&self.format("%H:%M:%S")?),
            'R' => out.push_str(&self.format("%H:%M")?),
            'D' | 'x' => out.push_str(&self.format("%m/%d/%y")?),
            'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")?),
            'X' => out.push_str(&self.format("%H:%M:%S")?),
            other => return Err(format!("%{other}")),
        }
        Ok(())
    }
}
