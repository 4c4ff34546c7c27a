# rows.awk - JSON rows, one object a line, as a table: cell[1, "variant"], and sums over it. A line that is no object is a row with
# one field, `said`.
#
#     awk -f common/classroom/rows.awk -f SCRIPT        SCRIPT has a rule or END to say what is done with them
#
# WHERE names the rows that count: "tensor=[QK], kernel=fa1_kernel", each a field and the regular expression that its value has to
# match, whole. "" counts every row; a row without the field does not count.
{ rows++ }
/^[^{]/ { cell[rows, "said"] = $0 }
/^[{]/ {
    for (text = $0; match(text, /"[^"]*": ("([^"\\]|\\.)*"|[^,}]*)/); text = substr(text, RSTART + RLENGTH)) {
        colon = index(substr(text, RSTART), "\": ")
        name = substr(text, RSTART + 1, colon - 2)
        value = substr(text, RSTART + colon + 2, RLENGTH - colon - 2)
        gsub(/^"|"$/, "", value)
        gsub(/\\"/, "\"", value)
        cell[rows, name] = value
    }
}

function holds(row, where,    test, tests, i, equals, name) {
    tests = split(where, test, /, */)
    for (i = 1; i <= tests; i++) {
        equals = index(test[i], "=")
        name = substr(test[i], 1, equals - 1)
        if (!((row, name) in cell) || cell[row, name] !~ ("^(" substr(test[i], equals + 1) ")$"))
            return 0
    }
    return 1
}

# How many rows.
function count(where,    row, found) {
    for (row = 1; row <= rows; row++)
        found += holds(row, where)
    return found + 0
}

# Over these rows, of all FIELDS, with spaces between: "bytes_read bytes_written".
function sum(fields, where,    row, name, names, i, total) {
    names = split(fields, name, " ")
    for (row = 1; row <= rows; row++)
        for (i = 1; i <= names; i++)
            if ((row, name[i]) in cell && holds(row, where))
                total += cell[row, name[i]]
    return total + 0
}

# The largest value of a field.
function largest(field, where,    row, found) {
    for (row = 1; row <= rows; row++)
        if ((row, field) in cell && holds(row, where) && cell[row, field] + 0 > found + 0)
            found = cell[row, field]
    return found + 0
}

# The source line that a field of the first such row names: 68 for "fma.cu:68".
function line_in(field, where,    row) {
    for (row = 1; row <= rows; row++)
        if ((row, field) in cell && holds(row, where))
            return substr(cell[row, field], match(cell[row, field], /:[0-9]+[^:]*$/) + 1) + 0
    return 0
}
