# student_tree.sh - a copy of the repository for students who are graded.                       (make student-tree DIR=course)
#
#     sh common/labs/student_tree.sh course             without the kernels of all labs
#     sh common/labs/student_tree.sh course 02 04       without those of these labs
#
# What is left out: the tests, which have the labs' solutions and the planted mistakes; solutions.md, the folded answers of the
# pages, and the answers that make exercise compares with; the teaching plan with its exam; the kernels of the labs, and with them
# the lines of common/ladder.txt of their stages and of those that are linked with them. 00_naive stays, because the judge needs it.
# Exit code: 0, or 2 and one line that says why.
name=student-tree
. common/classroom/tools.sh
to=$1
[ "$to" ] || stop 'DIR= is missing: choose a folder that does not exist yet, like DIR=course'
[ ! -e "$to" ] || stop "DIR=$to exists: choose a folder that does not"
shift
all=$(cd common/labs && ls -d */ | tr -d /)
labs=${*:-$all}
for lab in $labs; do
    [ -e "common/labs/$lab/lab.txt" ] || stop "N=$lab: choose from $(echo $all)"
done
mkdir -p "$to" 2>/dev/null || stop "DIR=$to cannot be made"
cp -pR LICENSE Makefile README.md .gitignore common notes "$to/" && for stage in [0-9]*_*/; do
    mkdir "$to/$stage" && find "$stage" -maxdepth 1 -type f -exec cp -p {} "$to/$stage" \;
done || stop "$to cannot be written"

cd "$to" || exit
rm -rf notes/solutions.md notes/teaching_plan.md notes/exercises/*.txt notes/results
for page in notes/*.md; do
    awk '/<details>/ {folded = 1} !folded {print} /<\/details>/ {folded = 0}' "$page" >page && mv page "$page"
done
for page in solutions teaching_plan; do # other pages have links to them
    printf '# Not in this copy\n\nThis page has answers or exam questions, so the copy for students leaves it out.\n' >"notes/$page.md"
done
for lab in $labs; do
    for stage in "$lab"_*/; do
        [ "$lab" != 00 ] && [ -d "$stage" ] || continue
        find "$stage" -name '*.cu*' ! -name 'naive_*' -exec rm {} \;
        awk -v stage="${stage%/}" '$1 != stage && index($3, stage "/") == 0' common/ladder.txt >ladder && mv ladder common/ladder.txt
    done
done
echo "$to is the students' copy. Not in it: tests, solutions, answers, the exam, the kernels of" $labs
